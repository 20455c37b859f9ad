-- Which actions would change the mode now. `resume` goes back to the mode before, while it is still an action that set this one.
local annotations = obj.metadata.annotations or {}
local mode = (obj.spec.policy or {}).mode or "RecommendOnly"
local before = annotations["tidegate.io/mode-before-action"] or ""
local set_by_action = annotations["tidegate.io/mode-of-action"] == mode
local actions = {}
actions["hold"] = { disabled = mode == "Hold" }
actions["recommend-only"] = { disabled = mode == "RecommendOnly" }
actions["resume"] = { disabled = not set_by_action or before == "" or before == mode }
return actions
