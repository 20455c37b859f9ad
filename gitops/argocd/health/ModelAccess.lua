-- It serves, and may release a target beside: under way, held, or taken back.
local found = standing()
local release = status.release
if found.status ~= "Healthy" or release == nil or obj.spec.release == nil then
  return found
end
local message = "release of " .. obj.spec.release.target .. " at " .. release.weight .. " %: " .. (release.message or "")
if release.phase == "Progressing" then
  return health("Progressing", message)
end
if release.phase == "Paused" then
  return health("Suspended", message)
end
if release.phase == "RolledBack" then
  return health("Degraded", message)
end
return found
