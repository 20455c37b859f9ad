{{/*
The kinds as `make generate` wrote them, below files/crds; the chart tidegate-crds links to this template and those files.
They are templates, and no folder crds/, since Helm would upgrade nothing that lies there. Arguments: root, keep.
*/}}
{{- define "tidegate.crds" -}}
{{- $annotations := deepCopy (default dict .root.Values.commonAnnotations) -}}
{{- if .keep -}}
{{- $_ := set $annotations "helm.sh/resource-policy" "keep" -}}
{{- end -}}
{{- $labels := merge (dict "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/managed-by" .root.Release.Service) (default dict .root.Values.commonLabels) -}}
{{- $root := .root -}}
{{- range $path, $_ := .root.Files.Glob "files/crds/*.yaml" }}
---
{{ $root.Files.Get $path | replace "\n  labels:\n" (printf "\n  annotations: %s\n  labels:\n%s\n" (toJson $annotations) (toYaml $labels | indent 4)) }}
{{- end }}
{{- end }}
