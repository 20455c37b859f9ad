-- Which commands would change something now: those of `tidegate release`, and `clear`, after which the last one counts again.
local actions = {}
local release = (obj.status or {}).release
if obj.spec.release == nil or release == nil then
  return actions
end
local said = (obj.metadata.annotations or {})["tidegate.io/release"] or ""
local under_way = release.phase == "Progressing" or release.phase == "Paused"
local held_by_annotation = release.phase == "Paused" and release.reason == "Paused" and said == "pause"
local useful = {
  pause = release.phase == "Progressing",
  resume = release.phase == "Paused",
  promote = under_way,
  abort = release.phase ~= "RolledBack",
  restart = true,
}
for command, changes in pairs(useful) do
  -- Each value is acted on once, when it is another one than was last seen.
  actions[command] = { disabled = not changes or said == command }
end
-- Where it holds the release, taking the annotation away lets it go on: that is resume.
actions["clear"] = { disabled = said == "" or said ~= release.command or held_by_annotation }
return actions
