-- A batch is Ready while it runs, and done when it is Complete.
local found = standing()
local complete = condition("Complete")
if found.status == "Healthy" and complete ~= nil and complete.status ~= "True" then
  if complete.reason == "ScaledToZero" then
    return health("Suspended", said(complete))
  end
  return health("Progressing", said(complete))
end
return found
