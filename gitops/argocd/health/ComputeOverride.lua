-- One that has run out did what it says: it waits to be deleted or renewed, and nothing is wrong.
local found = standing()
local stalled = condition("Stalled")
if found.status == "Degraded" and stalled.reason == "OverrideExpired" then
  return health("Suspended", said(stalled))
end
return found
