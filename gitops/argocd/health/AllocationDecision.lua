-- A record: it has no conditions, and an outcome where it was to be carried out.
local outcome = status.outcome or {}
if outcome.error ~= nil and outcome.error ~= "" then
  return health("Degraded", outcome.error)
end
if obj.spec.mode == "RecommendOnly" or obj.spec.moveCount == nil or obj.spec.moveCount == 0 then
  return health("Healthy", "nothing is to be carried out")
end
if outcome.appliedAt ~= nil then
  return health("Healthy", "carried out at " .. outcome.appliedAt)
end
return health("Progressing", "is being carried out")
