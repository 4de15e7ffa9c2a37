# shellcheck shell=sh
#
# Sourced by `make installcheck` before pg_regress, with the name of psql in $psql: refuses
# a server that the tests would fail on, and undoes what they set if they do not end well.
#
# Only ALTER SYSTEM reaches the limit, and the tests reset what they set: so there must be
# no setting of the gate that they would take away.

sql() { "${psql:?}" -XAtq -d "${PGDATABASE:-postgres}" -c "$1"; }

# The settings that are not at their defaults, in force or not yet
settings() {
    sql "SELECT string_agg(name, ' ' ORDER BY name)
         FROM (SELECT name FROM pg_settings WHERE source NOT IN ('default', 'client')
               UNION SELECT name FROM pg_file_settings) AS s
         WHERE name LIKE 'admission\\_gate.%'"
}

undo() {
    status=$?
    trap '' HUP INT TERM PIPE
    [ "$status" != 0 ] || return 0
    export PGOPTIONS='-c admission_gate.bypass=on'
    left=$(settings)
    [ -n "$left" ] || return 0
    echo "installcheck did not end well; resetting what it has set: $left" >&2
    for name in $left; do
        sql "ALTER SYSTEM RESET $name"
    done
    sql 'SELECT pg_reload_conf()' >/dev/null
}

libs=$(sql 'SHOW shared_preload_libraries') || {
    echo "installcheck needs a running server and its superuser: set PGHOST, PGPORT and PGUSER, or run 'make test', which starts its own." >&2
    exit 1
}
case ,$(echo "$libs" | tr -d ' "'), in
    *,admission_gate,*) ;;
    *)
        echo "The server does not preload admission_gate (shared_preload_libraries = '$libs').
Run 'make install', add it to shared_preload_libraries in postgresql.conf, restart the server and try again,
or run 'make test', which starts its own server." >&2
        exit 1
        ;;
esac
found=$(settings) || exit 1
[ -z "$found" ] || {
    echo "installcheck needs the gate's default settings, but these are set, perhaps by a run that was killed: $found
Reset them (ALTER SYSTEM RESET ...; SELECT pg_reload_conf();) and try again, or run 'make test', which starts its own server." >&2
    exit 1
}

trap undo EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
