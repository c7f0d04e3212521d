#!/usr/bin/env bash
# A worker in 60 lines of bash and curl: docs/reference/worker-protocol.md explains each request.
# It serves the job of the conformance kit; write your own job into `run`. If you have jq, use it instead of `field`,
# which takes the last field of a name, and needs the order of fields that this server's answers have.
set -um
API=${ZNDRAW_JOBLIB_URL%/}/v1/joblib DIR=$(mktemp -d) STOPPED=''
# send METHOD PATH JSON [CURL OPTIONS]: repeat the request until the server answers, with BODY and STATUS.
send() {
  local method=$1 path=$2 json=$3 out=$DIR/$BASHPID key; shift 3; key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  while :; do
    STATUS=$(curl -s -o "$out" -w '%{http_code} %{content_type}' -m 90 -X "$method" "$API$path" "$@" \
      -H "Authorization: Bearer $ZNDRAW_JOBLIB_TOKEN" -H "Idempotency-Key: $key" \
      ${json:+-H 'Content-Type: application/json' --data-binary "$json"})
    BODY=$(cat "$out" 2>/dev/null)
    case $STATUS$BODY in 000*|[35]*|429*|2*text/html*|409*request-in-progress*) sleep 1 ;; *) break ;; esac
  done
}
field() { sed -nE "s/.*\"$1\":(\"([^\"\\]|\\\\.)*\"|[^],}\"]*).*/\1/p" <<<"${2-$BODY}"; } # as JSON
text() { field "$@" | tr -d '"'; }
register() {
  send POST /workers '{"name":"bash","slots":1}'; WORKER=$(text id) BEAT=$(field heartbeat_interval_seconds)
  send PUT /rooms/@global/jobs '{"category":"jobs","name":"conformance","max_tasks":1,"worker_id":"'"$WORKER"'"}'
  case $STATUS in 2*) ;; *) echo "cannot register: $BODY" >&2; exit 1 ;; esac
}
report() { send PATCH "/tasks/$1" "{\"worker_id\":\"$WORKER\",\"attempt\":$2,$3}"; } # TASK ATTEMPT FIELDS
# beat TASK ATTEMPT PID: send heartbeats while the task runs; a verdict other than `continue` stops it.
beat() {
  while sleep "$BEAT"; do
    send PATCH "/workers/$WORKER" "{\"tasks\":[{\"id\":\"$1\",\"attempt\":$2}]}"
    case $STATUS$(text verdict) in 404*|*cancel|*lost) touch "$DIR/stop"; kill -- "-$3"; return ;; esac
  done
}
# run TASK ATTEMPT PAYLOAD: the job. It writes the fields of the last report to $DIR/end.
run() {
  local log=$(field log "$3") steps=$(field steps "$3") size=$(field size "$3") error=$(field error "$3") value=null n=1 result
  case $3 in *'"value":'[{[]*) value=${3#*\"value\":} value=${value%\}} ;; *'"value":'*) value=$(field value "$3") ;; esac
  [ -z "$log" ] || report "$1" "$2" "\"log\":{\"first\":1,\"lines\":[{\"at\":\"$(date -u +%FT%TZ)\",\"text\":$log}]}"
  for ((; n <= ${steps:-0}; n++)); do report "$1" "$2" "\"progress\":{\"current\":$n,\"total\":$steps}"; done
  sleep "$(field seconds "$3" | grep . || echo 0)"
  result=",\"result\":$value"; if [ -n "$size" ]; then
    result=''; head -c "$size" /dev/zero | tr '\0' x >"$DIR/result"
    send PUT "/tasks/$1/result?attempt=$2" '' -T "$DIR/result" -H 'Content-Type: application/octet-stream'
  fi
  case $error$(field final "$3") in
    '') echo "\"status\":\"completed\"$result" ;;
    *true) echo "\"status\":\"failed\",\"error\":$error,\"retry\":false" ;;
    *) echo "\"status\":\"failed\",\"error\":$error" ;;
  esac >"$DIR/end"
}
trap 'STOPPED=1' TERM INT; register
while [ -z "$STOPPED" ]; do
  began=$SECONDS; send POST /tasks/claim "{\"worker_id\":\"$WORKER\"}" -H 'Prefer: wait=5'
  case $STATUS$BODY in
    404*) register; continue ;;
    200*'{"task":null'*'"reason":"draining"'*) break ;;
    200*'{"task":null'*) [ "$SECONDS" -gt "$began" ] || sleep 1; continue ;;
    200*) payload=${BODY#*\"payload\":} payload=${payload%,\"queue_position\"*} ;;
    *) echo "cannot claim: $BODY" >&2; exit 1 ;;
  esac
  task=$(text id "${BODY%%\"job_name\"*}") attempt=$(field attempt "${BODY##*\"queue_position\"}")
  rm -f "$DIR/stop" "$DIR/end"; report "$task" "$attempt" '"status":"running"'; [ "${STATUS%% *}" = 200 ] || continue
  run "$task" "$attempt" "$payload" & job=$!; beat "$task" "$attempt" "$job" & beats=$!
  while kill -0 "$job"; do wait "$job"; done 2>/dev/null
  { kill -- "-$beats"; wait "$beats"; } 2>/dev/null
  [ -e "$DIR/stop" ] || report "$task" "$attempt" "$(cat "$DIR/end" || echo '"status":"failed","error":"it crashed"')"
done
send DELETE "/workers/$WORKER" ''; rm -rf "$DIR"
