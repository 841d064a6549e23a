{{/* Flags of dspark serve that say what is served: a change of any makes a new state folder. */}}
{{- define "dspark.modelFlags" -}}
{{- with .Values.model }}
{{- if .demo }}
- --speculative-draft-model-path=/opt/sgl-dspark/draft
{{- else }}
- {{ printf "--model-path=%s" .path | quote }}
{{- if .plain }}
- --plain
{{- else }}
- {{ printf "--speculative-draft-model-path=%s" .draftPath | quote }}
{{- end }}
{{- end }}
{{- with .servedName }}
- {{ printf "--served-model-name=%s" . | quote }}
{{- end }}
{{- end }}
{{- with .Values.parallel }}
{{- if gt (int .tensor) 1 }}
- --tp-size={{ .tensor }}
{{- end }}
{{- if gt (int .data) 1 }}
- --dp-size={{ .data }}
{{- end }}
{{- end }}
{{- range .Values.server.args }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "dspark.stateFolder" -}}
{{- $known := list (include "dspark.image" .) (include "dspark.modelFlags" .) .Values.resources .Values.nodeSelector .Values.gpu }}
{{- printf "/var/lib/sgl-dspark/%s" ($known | toJson | sha256sum | trunc 16) -}}
{{- end }}

{{- define "dspark.args" -}}
- serve
- --host=0.0.0.0
- --port={{ .Values.server.port }}
- --drain-timeout={{ .Values.drain.timeoutSeconds }}
{{ include "dspark.modelFlags" . | trim }}
{{- if not .Values.model.plain }}
- --step-time-profile={{ include "dspark.stateFolder" . }}/step-times.json
{{- if .Values.calibration.configMap }}
- --calibration=/etc/sgl-dspark/calibration/{{ .Values.calibration.key }}
{{- end }}
{{- end }}
{{- if .Values.multiNode.enabled }}
- --nnodes={{ .Values.multiNode.size }}
- --node-rank=$(LWS_WORKER_INDEX)
- --dist-init-addr=$(LWS_LEADER_ADDRESS):{{ .Values.multiNode.initPort }}
{{- end }}
{{- end }}

{{- define "dspark.probes" -}}
startupProbe:
  httpGet: {path: /health_generate, port: http}
  {{- toYaml .Values.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /health, port: http}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: /ready, port: http}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
{{- end }}

{{- define "dspark.container" -}}
name: server
image: {{ include "dspark.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
  {{- include "dspark.args" .root | nindent 2 }}
env:
  - {name: SGL_DSPARK_STATE, value: {{ include "dspark.stateFolder" .root }}}
  {{- if include "dspark.keysSecret" .root }}
  # With it the entrypoint starts nothing without a key.
  - {name: SGL_DSPARK_KEYS, value: /run/secrets/sgl-dspark}
  {{- end }}
  {{- with .root.Values.server.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if .serves }}
ports:
  - {name: http, containerPort: {{ .root.Values.server.port }}, protocol: TCP}
{{- include "dspark.probes" .root | nindent 0 }}
lifecycle:
  preStop:
    exec: {command: [sleep, {{ .root.Values.drain.preStopSeconds | quote }}]}
{{- end }}
resources:
  {{- $limits := deepCopy (.root.Values.resources.limits | default dict) }}
  {{- if .root.Values.gpu.enabled }}
  {{- $_ := set $limits .root.Values.gpu.resource (include "dspark.gpusPerPod" .root | int) }}
  {{- end }}
  {{- toYaml (merge (dict "limits" $limits) (omit .root.Values.resources "limits")) | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: state, mountPath: /var/lib/sgl-dspark}
  {{- if .root.Values.cache.size }}
  - {name: cache, mountPath: /var/lib/sgl-dspark/cache}
  {{- end }}
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
  {{- if include "dspark.keysSecret" .root }}
  - {name: keys, mountPath: /run/secrets/sgl-dspark, readOnly: true}
  {{- end }}
  {{- if .root.Values.calibration.configMap }}
  - {name: calibration, mountPath: /etc/sgl-dspark/calibration, readOnly: true}
  {{- end }}
  {{- if .root.Values.model.volume }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
{{- end }}

{{- define "dspark.podTemplate" -}}
metadata:
  labels:
    {{- include "dspark.selectorLabels" .root | nindent 4 }}
    app.kubernetes.io/component: server
    {{- with .root.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- if and (include "dspark.keysSecret" .root) (not .root.Values.keys.existingSecret) }}
    # New keys take effect by a rolling restart.
    checksum/keys: {{ .root.Values.keys | toJson | sha256sum }}
    {{- end }}
    kubectl.kubernetes.io/default-container: server
    {{- with .root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  terminationGracePeriodSeconds: {{ include "dspark.graceSeconds" .root }}
  serviceAccountName: {{ include "dspark.serviceAccountName" .root }}
  automountServiceAccountToken: false
  # A service called dspark would set variables that begin with DSPARK_.
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- if and .root.Values.gpu.enabled .root.Values.gpu.runtimeClassName }}
  runtimeClassName: {{ .root.Values.gpu.runtimeClassName }}
  {{- end }}
  {{- with .root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  containers:
    - {{ include "dspark.container" . | nindent 6 | trim }}
  volumes:
    {{- if or (not .root.Values.state.persistent) .root.Values.multiNode.enabled }}
    - {name: state, emptyDir: {}}
    {{- end }}
    {{- if and .root.Values.cache.size (or (not .root.Values.state.persistent) .root.Values.multiNode.enabled) }}
    - {name: cache, emptyDir: {sizeLimit: {{ .root.Values.cache.size }}}}
    {{- end }}
    - {name: tmp, emptyDir: {}}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .root.Values.sharedMemory }}}}
    {{- with include "dspark.keysSecret" .root }}
    - {name: keys, secret: {secretName: {{ . }}, defaultMode: 0440}}
    {{- end }}
    {{- with .root.Values.calibration.configMap }}
    - {name: calibration, configMap: {name: {{ . }}}}
    {{- end }}
    {{- with .root.Values.model.volume }}
    - name: models
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
  {{- with get $.root.Values $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}
