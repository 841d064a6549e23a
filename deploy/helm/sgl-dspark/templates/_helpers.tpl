{{- define "dspark.name" -}}sgl-dspark{{- end }}

{{- define "dspark.fullname" -}}
{{- if contains "dspark" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-dspark" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "dspark.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dspark.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The pods that answer requests: of several machines per replica only the first. */}}
{{- define "dspark.servingLabels" -}}
{{ include "dspark.selectorLabels" . }}
app.kubernetes.io/component: server
{{- if .Values.multiNode.enabled }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end }}

{{- define "dspark.labels" -}}
{{ include "dspark.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "dspark.image" -}}
{{- $stage := ternary "cuda" "cpu" .Values.gpu.enabled }}
{{- .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion $stage) }}
{{- end }}

{{- define "dspark.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "dspark.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{/* The secret with the API keys, or nothing. */}}
{{- define "dspark.keysSecret" -}}
{{- if .Values.keys.existingSecret }}{{ .Values.keys.existingSecret }}
{{- else if or .Values.keys.apiKey .Values.keys.adminApiKey }}{{ include "dspark.fullname" . }}-keys{{ end -}}
{{- end }}

{{/* GPUs that one machine of a replica gives. */}}
{{- define "dspark.gpusPerPod" -}}
{{- $all := mul .Values.parallel.tensor .Values.parallel.data }}
{{- $machines := ternary .Values.multiNode.size 1 .Values.multiNode.enabled }}
{{- if mod $all $machines }}
{{- fail (printf "parallel.tensor * parallel.data = %d does not divide among multiNode.size = %v machines" $all $machines) }}
{{- end }}
{{- div $all $machines -}}
{{- end }}

{{/* The kubelet kills when this has passed since the pod's end began; preStop counts into it. */}}
{{- define "dspark.graceSeconds" -}}
{{- add .Values.drain.preStopSeconds .Values.drain.timeoutSeconds .Values.drain.marginSeconds -}}
{{- end }}

{{- define "dspark.checkValues" -}}
{{- $_ := include "dspark.gpusPerPod" . }}
{{- if and (not .Values.model.demo) (not .Values.model.path) }}
{{- fail "model.path is empty; name the target, or set model.demo to serve the demo pair of the cpu image" }}
{{- end }}
{{- if and .Values.model.demo (or .Values.model.path .Values.model.draftPath .Values.model.plain) }}
{{- fail "model.demo excludes model.path, model.draftPath and model.plain" }}
{{- end }}
{{- if and .Values.model.path (not .Values.model.plain) (not .Values.model.draftPath) }}
{{- fail "model.draftPath is empty; name the draft of this target, or set model.plain to serve without one" }}
{{- end }}
{{- if and .Values.model.plain .Values.model.draftPath }}
{{- fail "model.plain serves the target alone; leave out model.draftPath or model.plain" }}
{{- end }}
{{- range $name := list "path" "draftPath" }}
{{- $path := get $.Values.model $name }}
{{- if and $path (not (hasPrefix "/" $path)) (not $.Values.cache.size) }}
{{- fail (printf "model.%s is no folder of the container but %q, which is downloaded: set cache.size above the size of target and draft, or mount them by model.volume and name a path that begins with /" $name $path) }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (eq .Values.monitoring.kind "none") (not .Values.autoscaling.scrapedElsewhere) }}
{{- fail "autoscaling asks for metrics with the labels namespace and pod, which monitoring.kind brings: set it to ServiceMonitor or PodMonitor, or set autoscaling.scrapedElsewhere if another scrape brings them" }}
{{- end }}
{{- if lt (int .Values.probes.liveness.timeoutSeconds) 21 }}
{{- fail "probes.liveness.timeoutSeconds must be above 20: /health waits that long for a token before it gives up" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" }}
{{- end }}
{{- end }}
