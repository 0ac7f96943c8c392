# The common part of the suites: Debian's programs, the library, running a server and a client, and counting. Sourced by
# the suites; needs `apt-get` of Debian 12. Nothing is installed into the system: packages are unpacked below
# target/suites.
set -uo pipefail
# The caller's settings: the suites rely on the defaults.
unset RDMA_VERBS_ADDRESSES RDMA_VERBS_PEERS RDMA_VERBS_SHARDS RDMA_VERBS_FAULTS RDMA_VERBS_MTU RDMA_VERBS_SHARED_MEMORY
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
suites=$PWD/${CARGO_TARGET_DIR:-target}/suites
[[ ${CARGO_TARGET_DIR:-} = /* ]] && suites=$CARGO_TARGET_DIR/suites
root=$suites/root
library=${RDMA_VERBS_CAPI:-$suites/lib}
logs=$(mktemp -d)
server=
# No server is left, however the suite ends.
end() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
  fi
  rm -rf "$logs"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
passed=0 failed=0
# Ports of the programs' own exchange over TCP: below those that the system assigns by itself.
port=$((20000 + $$ % 10000))
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null) || multiarch=$(uname -m)-linux-gnu

# Unpacks missing packages.
unpack() {
  local package
  mkdir -p "$root" "$suites/packages"
  for package in "$@"; do
    [ -e "$suites/packages/$package" ] && continue
    # An older one that was downloaded and not unpacked.
    rm -f "$suites/packages/$package"_*.deb
    (cd "$suites/packages" && { apt-get download -q "$package" || { apt-get update -q && apt-get download -q "$package"; }; } >/dev/null 2>&1) ||
      { echo "package $package cannot be had" >&2; exit 1; }
    dpkg -x "$suites/packages/$package"_*.deb "$root" && touch "$suites/packages/$package"
  done
}

# Builds the library, unless RDMA_VERBS_CAPI names a folder with one.
prepare() {
  [ -n "${RDMA_VERBS_CAPI:-}" ] || capi/install "$library" >/dev/null || exit 1
  export LD_LIBRARY_PATH=$library:$root/usr/lib/$multiarch
}

pass() {
  passed=$((passed + 1))
  [ -z "${VERBOSE:-}" ] || printf 'ok      %s\n' "$1"
}

fail() {
  failed=$((failed + 1))
  printf 'FAILED  %s\n' "$1"
  shift
  [ $# = 0 ] || tail -n 15 "$@" | sed 's/^/        /'
}

# check NAME COMMAND...: passes if the command succeeds.
check() {
  local name=$1
  shift
  if timeout "${LIMIT:-60}" "$@" >"$logs/out" 2>&1; then pass "$name"; else fail "$name" "$logs/out"; fi
}

# pair NAME PROGRAM ARGUMENTS...: runs the program as a server, and again with the address as a client. Both must
# succeed, and so must JUDGE, if it is set: a command that reads their output in $logs/client and $logs/server.
pair() {
  local name=$1
  shift
  server_command=("$@") client_command=("$@")
  pair_of_commands "$name"
}

# pair_of_commands NAME: like pair, with two commands, server_command and client_command.
pair_of_commands() {
  run_pair
  judge_pair "$1"
}

# unreliable_pair NAME PROGRAM ARGUMENTS...: like pair, with a service that may lose messages, for programs that wait
# for each of them. Runs up to five times, and again only if the system reports that a socket's buffer overflowed.
unreliable_pair() {
  local name=$1 try lost
  shift
  server_command=("$@") client_command=("$@")
  for try in 1 2 3 4 5; do
    lost=$(datagrams_lost)
    LIMIT=${LIMIT:-20} run_pair
    if [ $((client_status + server_status)) = 0 ] || [ "$(datagrams_lost)" = "$lost" ]; then break; fi
  done
  judge_pair "$name"
}

# choose_path NUMBER: every fourth pair of cases runs without shared memory, over UDP; the others with the default.
choose_path() {
  unset RDMA_VERBS_SHARED_MEMORY
  [ $(($1 / 2 % 4)) != 3 ] || export RDMA_VERBS_SHARED_MEMORY=off
}

# Number of datagrams that found a full buffer, of both versions of IP.
datagrams_lost() {
  awk '/^Udp: [0-9]/ { four = $6 } /^Udp6RcvbufErrors/ { six = $2 } END { print four + six }' /proc/net/snmp /proc/net/snmp6
}

# perftest_figure MEASURE SIZE: prints microseconds per message, from the output of perftest's client. Its mega is 2^20.
perftest_figure() {
  case $1 in
  lat) awk -v size="$2" '$1 == size && NF == 9 { print $5 }' "$logs/client" ;;
  bw) awk -v size="$2" '$1 == size && NF == 5 { print size / ($4 * 1.048576) }' "$logs/client" ;;
  esac
}

# note_figure ROW SETTING FIGURE: adds a measurement for figures.awk; without a number it has failed.
note_figure() {
  if [[ $3 =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
    echo "$1,$2,$3" >>"$logs/figures"
  else
    fail "$1, $2: no figure" "$logs/client"
  fi
}

# The client's argument, and the prefix of commands in the server's network.
server_address=127.0.0.1 at_server=()

# Runs server_command and client_command; sets client_status and server_status.
run_pair() {
  local try
  client_status=1 server_status=0
  port=$((port + 1))
  timeout "${LIMIT:-60}" "${server_command[@]}" -p "$port" >"$logs/server" 2>&1 &
  server=$!
  # The client starts when the server listens.
  for try in $(seq 100); do
    "${at_server[@]}" grep -qE "$(printf ':%04X (0{8}|0{32}):0000 0A' "$port")" /proc/net/tcp /proc/net/tcp6 \
      2>/dev/null && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.02
  done
  timeout "${LIMIT:-60}" "${client_command[@]}" -p "$port" "$server_address" >"$logs/client" 2>&1 && client_status=0
  # The client has failed, so the server would wait forever.
  [ $client_status = 0 ] || kill "$server" 2>/dev/null
  wait "$server" || server_status=$?
  server=
}

judge_pair() {
  local name=$1
  if [ $client_status = 0 ] && [ $server_status = 0 ] && ${JUDGE:-true}; then
    pass "$name"
  else
    fail "$name (client $client_status, server $server_status)" "$logs/client" "$logs/server"
  fi
}

finish() {
  echo "$1: $passed passed, $failed failed"
  [ "$failed" = 0 ]
}
