/* admission_gate--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION admission_gate" to load this file. \quit

CREATE FUNCTION pg_stat_get_admission_gate(
    OUT pool text,
    OUT mode text,
    OUT max_active int4,
    OUT priority int4,
    OUT running int4,
    OUT working int4,
    OUT waiting int4,
    OUT admitted int8,
    OUT completed int8,
    OUT failed int8,
    OUT queued int8,
    OUT would_queue int8,
    OUT barged int8,
    OUT forced int8,
    OUT stalls int8,
    OUT timeouts int8,
    OUT rejections int8,
    OUT cancels int8,
    OUT overdue int8,
    OUT total_wait_time float8,
    OUT max_wait_time float8,
    OUT stats_reset timestamptz
)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE ROWS 1 PARALLEL SAFE;

COMMENT ON FUNCTION pg_stat_get_admission_gate() IS
    'statistics: limit, gauges and totals of each pool';

CREATE VIEW pg_stat_admission_gate AS
    SELECT * FROM pg_stat_get_admission_gate();

COMMENT ON VIEW pg_stat_admission_gate IS
    'one row per pool: how many backends hold slots, work and wait, and how long they have waited';

GRANT SELECT ON pg_stat_admission_gate TO PUBLIC;

CREATE FUNCTION pg_stat_get_admission_gate_backends(
    OUT pid int4,
    OUT pool text,
    OUT gate_state text,
    OUT state_change timestamptz,
    OUT wait_time float8,
    OUT expected_time float8
)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

COMMENT ON FUNCTION pg_stat_get_admission_gate_backends() IS
    'statistics: backends that hold a slot or wait at the gate';

CREATE VIEW pg_stat_admission_gate_backends AS
    SELECT * FROM pg_stat_get_admission_gate_backends();

COMMENT ON VIEW pg_stat_admission_gate_backends IS
    'one row per backend that holds a slot or waits at the gate';

GRANT SELECT ON pg_stat_admission_gate_backends TO PUBLIC;

CREATE FUNCTION pg_stat_get_admission_gate_histogram(
    OUT pool text,
    OUT lower_bound float8,
    OUT upper_bound float8,
    OUT waits int8
)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE ROWS 24 PARALLEL SAFE;

COMMENT ON FUNCTION pg_stat_get_admission_gate_histogram() IS
    'statistics: histogram of waits at the gate';

CREATE VIEW pg_stat_admission_gate_histogram AS
    SELECT * FROM pg_stat_get_admission_gate_histogram();

COMMENT ON VIEW pg_stat_admission_gate_histogram IS
    'one row per pool and range of wait times: how many waits took that long';

GRANT SELECT ON pg_stat_admission_gate_histogram TO PUBLIC;

CREATE FUNCTION pg_stat_get_admission_gate_hot_spots(
    OUT hot_spot int4,
    OUT kind text,
    OUT datid oid,
    OUT relid oid,
    OUT classid oid,
    OUT objid oid,
    OUT objsubid int2,
    OUT since timestamptz,
    OUT hot_keys int4,
    OUT last_row tid,
    OUT max_active int4,
    OUT contenders int4,
    OUT running int4,
    OUT blocked int4,
    OUT waiting int4,
    OUT waiter int4,
    OUT admitted int8,
    OUT total_wait_time float8,
    OUT min_expected_time float8
)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE ROWS 32 PARALLEL SAFE;

COMMENT ON FUNCTION pg_stat_get_admission_gate_hot_spots() IS
    'statistics: hot spots and queues of long statements';

CREATE VIEW pg_stat_admission_gate_hot_spots AS
    SELECT h.hot_spot, h.kind, d.datname,
           CASE WHEN d.datname = current_database() THEN h.relid::regclass::text
                ELSE h.relid::text END AS relation,
           h.classid, h.objid, h.objsubid, h.since, h.hot_keys, h.last_row, h.max_active,
           h.contenders, h.running, h.blocked, h.waiting, h.waiter, h.admitted, h.total_wait_time,
           h.min_expected_time
    FROM pg_stat_get_admission_gate_hot_spots() h
    LEFT JOIN pg_database d ON d.oid = h.datid;

COMMENT ON VIEW pg_stat_admission_gate_hot_spots IS
    'one row per hot spot, and per queue of long statements: what backends contend for, how many places there are, and how many wait';

GRANT SELECT ON pg_stat_admission_gate_hot_spots TO PUBLIC;

CREATE FUNCTION pg_stat_get_admission_gate_past_hot_spots(
    OUT kind text,
    OUT datid oid,
    OUT relid oid,
    OUT classid oid,
    OUT objid oid,
    OUT objsubid int2,
    OUT since timestamptz,
    OUT ended timestamptz,
    OUT last_row tid,
    OUT most_in_line int4,
    OUT admitted int8,
    OUT total_wait_time float8
)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE ROWS 100 PARALLEL SAFE;

COMMENT ON FUNCTION pg_stat_get_admission_gate_past_hot_spots() IS
    'statistics: hot spots that have ended';

CREATE VIEW pg_stat_admission_gate_past_hot_spots AS
    SELECT h.kind, d.datname,
           CASE WHEN d.datname = current_database() THEN h.relid::regclass::text
                ELSE h.relid::text END AS relation,
           h.classid, h.objid, h.objsubid, h.since, h.ended, h.last_row,
           h.most_in_line, h.admitted, h.total_wait_time
    FROM pg_stat_get_admission_gate_past_hot_spots() h
    LEFT JOIN pg_database d ON d.oid = h.datid;

COMMENT ON VIEW pg_stat_admission_gate_past_hot_spots IS
    'one row per hot spot with a queue that has ended, of the last 100: what backends contended for, when, and how long they waited';

GRANT SELECT ON pg_stat_admission_gate_past_hot_spots TO PUBLIC;

CREATE FUNCTION pg_stat_get_admission_gate_worker(
    OUT pid int4,
    OUT started timestamptz,
    OUT last_sample timestamptz,
    OUT samples int8,
    OUT sample_time float8,
    OUT cpu_limit int4,
    OUT cpu_limit_since timestamptz
)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE ROWS 1 PARALLEL SAFE;

COMMENT ON FUNCTION pg_stat_get_admission_gate_worker() IS
    'statistics: the background worker, which samples backends';

CREATE VIEW pg_stat_admission_gate_worker AS
    SELECT * FROM pg_stat_get_admission_gate_worker();

COMMENT ON VIEW pg_stat_admission_gate_worker IS
    'one row: the background worker, which samples backends; pid is null if it does not run';

GRANT SELECT ON pg_stat_admission_gate_worker TO PUBLIC;

CREATE FUNCTION pg_stat_admission_gate_reset()
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

COMMENT ON FUNCTION pg_stat_admission_gate_reset() IS
    'statistics: reset the totals of all pools, and forget past hot spots';

REVOKE ALL ON FUNCTION pg_stat_admission_gate_reset() FROM PUBLIC;
