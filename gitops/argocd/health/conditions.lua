-- What an object of Tidegate says by its conditions, as Argo CD's health; the same as kstatus reads from them.
local status = obj.status or {}

local function condition(kind)
  for _, each in ipairs(status.conditions or {}) do
    if each.type == kind then
      return each
    end
  end
  return nil
end

local function holds(kind)
  local found = condition(kind)
  return found ~= nil and found.status == "True"
end

local function health(verdict, message)
  return { status = verdict, message = message }
end

local function said(each)
  if each.message == nil or each.message == "" then
    return each.reason or each.type
  end
  return (each.reason or each.type) .. ": " .. each.message
end

local function standing()
  if obj.metadata.deletionTimestamp ~= nil then
    return health("Progressing", "is being deleted")
  end
  if status.observedGeneration ~= obj.metadata.generation then
    return health("Progressing", "the controllers have not looked at this generation yet")
  end
  if holds("Stalled") then
    return health("Degraded", said(condition("Stalled")))
  end
  if holds("Reconciling") then
    return health("Progressing", said(condition("Reconciling")))
  end
  local ready = condition("Ready")
  if ready == nil then
    return health("Progressing", "the controllers have not said yet whether it is ready")
  end
  if ready.status == "True" then
    return health("Healthy", said(ready))
  end
  return health("Progressing", said(ready))
end
