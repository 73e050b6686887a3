#!/bin/sh
# Supervises one PostgreSQL server for the tests and ends with them: standard input is a pipe from their process, which
# closes when that process ends in any way. Then the server is killed and its directory removed.
#
# Usage: postgres.sh BIN CACHE SETTING... Prints its directory, and then for each command the ids of its processes:
#   start PORT   starts the server; the one before must have ended
#   one SIGNAL   signals the server's first process
#   all SIGNAL   signals that and every process it has started
set -eu
# The cleanup must run in both cases: standard output without a reader, which is an error of `echo`; and the end of the
# tests while a server is stopped, at which the kernel sends SIGHUP to the whole process group.
trap '' PIPE HUP
trap 'exit 1' INT TERM
bin=$1
cache=$2
shift 2
for setting; do
  set -- "$@" -c "$setting"
  shift
done

umask 077
here=$(mktemp -d --suffix=.plantstore-postgres)
# In a mount namespace of its own.
[ -z "${DISK_SIZE-}" ] || mount -t tmpfs -o "size=$DISK_SIZE" tmpfs "$here"
server=
trap end EXIT

# PostgreSQL does not run as root. If this shell is killed, the server still ends.
run="setpriv --pdeathsig=QUIT"
if [ "$(id -u)" = 0 ]; then
  run="$run --reuid=nobody --regid=$(id -g nobody) --clear-groups"
  chown nobody "$here"
fi
cd "$here"

# True if the server runs. Its id may be reused after its end, but only the server has this shell as its parent.
runs() {
  [ -n "$server" ] && grep -qs "^PPid:[[:space:]]*$$\$" "/proc/$server/status"
}

family() {
  echo "$server"
  grep -ls "^PPid:[[:space:]]*$server\$" /proc/[0-9]*/status | cut -d / -f 3
}

end() {
  trap - EXIT
  trap '' INT TERM
  set +e
  if runs; then
    # A stopped server starts no more children. A child that the list misses ends when it has lost its parent.
    kill -STOP "$server"
    kill -KILL $(family)
    wait "$server"
  fi 2> /dev/null
  # A killed server leaves a segment of shared memory. This file has its id.
  segment=$(sed -n '7s/.* //p' data/postmaster.pid 2> /dev/null)
  [ -z "$segment" ] || ipcrm --shmem-id "$segment" 2> /dev/null
  cd /
  [ -z "${DISK_SIZE-}" ] || umount "$here" 2> /dev/null
  # A process that is about to end may still create a file.
  for _ in 1 2 3 4 5; do
    rm -rf "$here" && break
    sleep 0.2
  done
}

# Creates an authority (`data/root.crt`) and a certificate for 127.0.0.1.
certify() {
  for name in root server; do
    $run openssl ecparam -name prime256v1 -genkey -noout -out "data/$name.key"
  done
  $run openssl req -new -x509 -key data/root.key -subj "/CN=authority of the tests" -days 30 -out data/root.crt
  echo "subjectAltName=IP:127.0.0.1,DNS:localhost" > data/server.ext
  $run openssl req -new -key data/server.key -subj "/CN=localhost" |
    openssl x509 -req -CA data/root.crt -CAkey data/root.key -CAcreateserial -days 30 -extfile data/server.ext \
      -out data/server.crt 2> /dev/null
  chmod 644 data/server.crt
}

# A new data directory is made once for each version and copied: initdb takes seconds of processor time. No test
# simulates a power failure, so writes need not wait for the disk; what a killed server has written stays in the memory
# of the kernel.
template=$cache/$("$bin/postgres" --version | tr -cs '[:alnum:].\n' _)
if cp -R "$template" data 2> /dev/null; then
  [ "$(id -u)" != 0 ] || chown -R nobody data
else
  rm -rf data
  $run "$bin/initdb" --pgdata=data --username=postgres --encoding=UTF8 --locale=C --no-sync > log 2>&1 || {
    cat log >&2
    exit 1
  }
  # The copy gets its name when it is complete. Several tests may do this at the same time: the first one wins.
  copy=$(mktemp -d "$cache/new.XXXXXX")
  cp -R data "$copy/data" && mv -T "$copy/data" "$template" 2> /dev/null || true
  rm -rf "$copy"
fi
cat > data/pg_hba.conf << 'END'
local all postgres trust
host all all 127.0.0.1/32 scram-sha-256
END
case " $* " in *" ssl=on "*) certify ;; esac

echo "$here"
while read -r command what; do
  case $command in
    start)
      [ -z "$server" ] || wait "$server" || true
      $run "$bin/postgres" -D "$here/data" -p "$what" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories="$here" -c max_connections=500 -c dynamic_shared_memory_type=mmap -c fsync=off "$@" \
        >> log 2>&1 < /dev/null &
      server=$!
      echo "$server"
      ;;
    one)
      if runs; then kill -"$what" "$server" || true; fi
      echo "$server"
      ;;
    all)
      processes=
      if runs; then
        processes=$(family)
        # One of them may just have ended.
        kill -"$what" $processes 2> /dev/null || true
      fi
      echo $processes
      ;;
  esac
done
