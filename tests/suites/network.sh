# A network of their own for suites of programs that connect by address: the interface rdma0 with the address $address,
# the loopback, and counters of all that leaves. There is no other RDMA device, so what goes to UDP port 4791 was sent
# by the library, and a program that uses TCP instead is found. By default both ends share memory, and neither counter
# has the data. Sourced by the suites after common.sh; needs root.

address=10.99.1.1

# install PACKAGE...: installs missing packages.
install() {
  local package wanted=()
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || wanted+=("$package")
  done
  [ ${#wanted[@]} = 0 ] && return
  apt-get update -q >/dev/null 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${wanted[@]}" >"$logs/apt" 2>&1 ||
    { echo "packages cannot be installed: ${wanted[*]}" >&2; tail -n 3 "$logs/apt" >&2; exit 1; }
}

# enter_network ARGUMENTS...: builds the library, and runs the suite again in its network, with these arguments.
enter_network() {
  [ "$(id -u)" = 0 ] || { echo "$0 needs root: it makes a network namespace" >&2; exit 1; }
  if [ -z "${IN_NETWORK:-}" ]; then
    prepare
    IN_NETWORK=1 RDMA_VERBS_CAPI=$library unshare --net --mount "$PWD/tests/suites/${0##*/}" "$@"
    exit
  fi
  ip link set lo up && ip link add rdma0 type veth peer name rdma1 && ip address add $address/24 dev rdma0 &&
    ip link set rdma0 up && ip link set rdma1 up && nft -f - <<'RULES' || exit 1
table inet judge {
  counter engine { }
  counter streams { }
  chain leaving {
    type filter hook output priority 0;
    udp dport 4791 counter name engine
    meta l4proto tcp counter name streams
  }
}
RULES
  run=$library/rdma-verbs-run
  unset LD_LIBRARY_PATH
}

# enlarge_packets: gives the interface the largest path MTU, for comparisons with TCP: packets to an own address take the
# loopback interface, whose MTU is 65536, and TCP uses that.
enlarge_packets() {
  ip link set rdma0 mtu 9000 && ip link set rdma1 mtu 9000 || exit 1
}

# bytes NAME: what a counter has counted.
bytes() {
  nft list counter inet judge "$1" | sed -n 's/.*bytes \([0-9]*\).*/\1/p'
}

# What must carry the data: memory, which is not counted, the counter engine, or streams for comparisons with TCP.
carrier=memory

# through PATH: from here on the library's packets go through memory, as they do by default; through memory from the first
# one on (required), for cases with so little data that they might be over before both ends share it; or through the
# network (engine), because memory is switched off.
through() {
  unset RDMA_VERBS_SHARED_MEMORY
  case $1 in
  memory) carrier=memory ;;
  required) carrier=memory && export RDMA_VERBS_SHARED_MEMORY=require ;;
  engine) carrier=engine && export RDMA_VERBS_SHARED_MEMORY=off ;;
  esac
}

# ring_bytes PROCESS: prints how much of the memory that it shares with other processes has been used.
ring_bytes() {
  awk '/\/memfd:rdma-verbs / { ring = 1 } ring && $1 == "Rss:" { used += $2 * 1024; ring = 0 } END { print used + 0 }' \
    "/proc/$1/smaps"
}

# moved BYTES: succeeds if the carrier sent at least as many bytes since `nft reset`, and the other at most a tenth of
# them. The data went through memory if neither counter has a tenth of it, and if, where `rings` tells what was used of
# the rings, that is as much, or half a ring.
moved() {
  local sent other=engine least=$(($1 < 262144 ? $1 : 262144))
  if [ $carrier = memory ]; then
    sent=$(($(bytes engine) + $(bytes streams)))
    [ $((sent * 10)) -le "$1" ] && [ "${rings:-$least}" -ge $least ] && return
    echo "$sent bytes of $1 were sent over the network; ${rings:-unknown} bytes of the rings were used" >>"$logs/client"
    return 1
  fi
  [ $carrier != engine ] || other=streams
  sent=$(bytes $carrier) other=$(bytes $other)
  [ "$sent" -ge "$1" ] && [ $((other * 10)) -le "$sent" ] && return
  echo "$carrier sent $sent bytes of at least $1, the other $other" >>"$logs/client"
  return 1
}

# await_server: waits until the server listens: until its output has $announcements lines "waiting for connection", on
# the TCP port $ready, or else with a device. At most 10 s, or, on a busy machine, 50 s for all announcements, without
# which the client would be rejected.
await_server() {
  local try tries=200
  [ -z "${announcements:-}" ] || tries=1000
  for try in $(seq "$tries"); do
    if [ -n "${announcements:-}" ]; then
      [ "$(grep -c "waiting for connection" "$logs/server")" -ge "$announcements" ] && return
    elif [ -n "${ready:-}" ]; then
      ss -Hltn "sport = :$ready" | grep -q . && return
    else
      # The socket is opened just before the program listens.
      ss -Hlun "sport = :4791" | grep -q . && sleep "${settle_seconds:-0.3}" && return
    fi
    kill -0 "$server" 2>/dev/null || return
    sleep 0.05
  done
}

# divide SERVER... -- CLIENT...: sets server_command and client_command.
divide() {
  server_command=()
  while [ "$1" != -- ]; do
    server_command+=("$1")
    shift
  done
  client_command=("${@:2}")
}

# serves NAME BYTES SERVER... -- CLIENT...: runs two programs, which must both succeed and move BYTES at least. With
# ENDLESS the server is ended after its client.
serves() {
  local name=$1 least=$2
  shift 2
  run_served "$@"
  JUDGE="moved $least" judge_pair "$name"
}

# run_served SERVER... -- CLIENT...: the same without judging. Sets client_status and server_status.
run_served() {
  divide "$@"
  client_status=1 server_status=0 rings=
  nft reset counters table inet judge >/dev/null
  # The server's process empties it later, and `await_server` reads what is there.
  : >"$logs/server"
  timeout -k 2 "${LIMIT:-60}" "$run" "${server_command[@]}" >"$logs/server" 2>&1 &
  server=$!
  await_server
  timeout -k 2 "${LIMIT:-60}" "$run" "${client_command[@]}" >"$logs/client" 2>&1 && client_status=0
  if [ $client_status != 0 ] || [ -n "${ENDLESS:-}" ]; then kill "$server" 2>/dev/null; fi
  wait "$server" || server_status=$?
  server=
  [ -z "${ENDLESS:-}" ] || server_status=0
}

# alone NAME BYTES COMMAND...: a command that starts both ends itself.
alone() {
  local name=$1 least=$2
  shift 2
  nft reset counters table inet judge >/dev/null
  server_status=0 client_status=0 rings=
  : >"$logs/server"
  timeout -k 2 "${LIMIT:-60}" "$run" "$@" >"$logs/client" 2>&1 || client_status=$?
  JUDGE="moved $least" judge_pair "$name"
}

# survives VICTIM SECONDS BYTES SERVER... -- CLIENT...: runs two programs and kills the VICTIM, `server` or `client`,
# after 1.5 seconds, in which they must move BYTES at least. Succeeds if the other one then ends by itself in time, and
# sets survivor_status.
survives() {
  local victim=$1 seconds=$2 least=$3 client left until
  shift 3
  divide "$@"
  nft reset counters table inet judge >/dev/null
  "$run" "${server_command[@]}" >"$logs/server" 2>&1 &
  server=$!
  await_server
  "$run" "${client_command[@]}" >"$logs/client" 2>&1 &
  client=$!
  sleep 1.5
  if [ "$victim" = server ]; then left=$client; else left=$server; fi
  rings=$(ring_bytes "${!victim}")
  kill -KILL "${!victim}"
  wait "${!victim}" 2>/dev/null
  until=$((SECONDS + seconds)) survivor_status=0
  while kill -0 "$left" 2>/dev/null && [ $SECONDS -lt $until ]; do sleep 0.1; done
  kill -KILL "$left" 2>/dev/null && echo "the other program did not end within $seconds seconds" >>"$logs/client"
  wait "$left" 2>/dev/null || survivor_status=$?
  server=
  [ $survivor_status != 137 ] && moved "$least"
}
