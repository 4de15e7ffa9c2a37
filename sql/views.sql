-- The views: what they show of a known sequence, and to whom.
CREATE EXTENSION admission_gate;

-- Every public object is explained.
SELECT pg_describe_object(classid, objid, objsubid) AS unexplained
FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'admission_gate')
  AND classid IN ('pg_proc'::regclass, 'pg_class'::regclass)
  AND obj_description(objid, classid::regclass::name) IS NULL;

\d pg_stat_admission_gate
\d pg_stat_admission_gate_backends
\d pg_stat_admission_gate_histogram
\d pg_stat_admission_gate_hot_spots
\d pg_stat_admission_gate_past_hot_spots
\d pg_stat_admission_gate_worker

-- The ranges of the histogram leave no gap.
SELECT pool, count(*), min(lower_bound), max(upper_bound),
       count(*) FILTER (WHERE upper_bound = 2 * lower_bound) AS powers_of_two
FROM pg_stat_admission_gate_histogram GROUP BY pool;
SELECT lower_bound, upper_bound FROM pg_stat_admission_gate_histogram WHERE 1000 >= lower_bound AND 1000 < upper_bound;

-- The worker runs, whether the gate is on or off.
SELECT pid <> pg_backend_pid() AS is_another, started < now() AS has_started FROM pg_stat_admission_gate_worker;

-- Columns that a newer script declares, and this library does not know, are null.
DO $$
BEGIN
  EXECUTE (SELECT format('CREATE FUNCTION newer(OUT pid int4, OUT started timestamptz, OUT last_sample timestamptz,
                          OUT samples int8, OUT sample_time float8, OUT cpu_limit int4,
                          OUT cpu_limit_since timestamptz, %s) RETURNS SETOF record LANGUAGE C AS %L, %L', string_agg('OUT new_' || i || ' text', ', '), probin, prosrc)
           FROM pg_proc, generate_series(1, 30) i WHERE proname = 'pg_stat_get_admission_gate_worker'
           GROUP BY probin, prosrc);
END
$$;
SELECT pid IS NOT NULL AS has_pid, sample_time IS NOT NULL AS has_time, new_1, new_20, new_21, new_30 FROM newer();
DROP FUNCTION newer;

-- While the gate is off, nobody is counted.
SELECT max_active, running, waiting FROM pg_stat_admission_gate;
SELECT count(*) FROM pg_stat_admission_gate_backends;

-- Switched on by a reload, this very session has a slot while it works.
ALTER SYSTEM SET admission_gate.max_active_backends = 3;
SELECT pg_reload_conf();
DO $$
BEGIN
  WHILE (SELECT max_active <> 3 FROM pg_stat_admission_gate) LOOP
    PERFORM pg_sleep(0.01);
  END LOOP;
END
$$;
SELECT pool, max_active, running, waiting FROM pg_stat_admission_gate;
SELECT pid = pg_backend_pid() AS myself, pool, gate_state, state_change = statement_timestamp() AS since_now, wait_time
FROM pg_stat_admission_gate_backends;

-- One admission per transaction, whatever it runs.  Who has a slot during a
-- reset counts as admitted since, so admitted = completed + failed + running.
SELECT pg_stat_admission_gate_reset();
BEGIN;
SELECT 1;
DO $$ BEGIN PERFORM 1; END $$;
SAVEPOINT s;
SELECT 1/0;
ROLLBACK TO s;
COMMIT;
SELECT 1/0;
SELECT stats_reset > now() - interval '1 hour' AS reset_lately,
       admitted, completed, failed, running, queued, barged, forced,
       timeouts, rejections, cancels, overdue, total_wait_time, max_wait_time
FROM pg_stat_admission_gate;

-- Whoever bypasses the gate is not counted.
SET admission_gate.bypass = on;
SELECT running FROM pg_stat_admission_gate;
RESET admission_gate.bypass;

-- Light commands need no slot.
SELECT pg_stat_admission_gate_reset();
SHOW work_mem;
EXPLAIN (COSTS OFF) SELECT 1;
LISTEN regress_gate;
UNLISTEN regress_gate;
PREPARE p AS SELECT 1;
SELECT admitted AS for_reset_and_this FROM pg_stat_admission_gate;
EXECUTE p;
ANALYZE pg_am;
\o /dev/null
EXPLAIN ANALYZE SELECT 1;
\o
CREATE TEMP TABLE t AS SELECT 1 AS a;
SELECT admitted AS with_five_more FROM pg_stat_admission_gate;

-- Pools, hot spots and the worker are for everyone to see; what others do, for pg_monitor.
GRANT pg_monitor TO regress_gate_monitor;
BEGIN;
SET LOCAL ROLE regress_gate_user;
SELECT running FROM pg_stat_admission_gate;
SELECT count(*) FROM pg_stat_admission_gate_hot_spots;
SELECT count(*) FROM pg_stat_admission_gate_past_hot_spots;
SELECT count(pid) FROM pg_stat_admission_gate_worker;
SELECT pid = pg_backend_pid() AS myself, pool, gate_state, state_change, wait_time
FROM pg_stat_admission_gate_backends;
-- Members of a role see its sessions.
RESET ROLE;
DO $$ BEGIN EXECUTE format('GRANT %I TO regress_gate_user', current_user); END $$;
SET LOCAL ROLE regress_gate_user;
SELECT pid = pg_backend_pid() AS myself, gate_state FROM pg_stat_admission_gate_backends;
SET LOCAL ROLE regress_gate_monitor;
SELECT pid = pg_backend_pid() AS myself, pool, gate_state, wait_time
FROM pg_stat_admission_gate_backends;
SELECT pg_stat_admission_gate_reset();
ROLLBACK;
GRANT EXECUTE ON FUNCTION pg_stat_admission_gate_reset() TO regress_gate_monitor;
SET ROLE regress_gate_monitor;
SELECT pg_stat_admission_gate_reset();
RESET ROLE;

-- And off again.
ALTER SYSTEM RESET admission_gate.max_active_backends;
SELECT pg_reload_conf();
DO $$
BEGIN
  WHILE (SELECT max_active <> 0 FROM pg_stat_admission_gate) LOOP
    PERFORM pg_sleep(0.01);
  END LOOP;
END
$$;
SELECT max_active, running, waiting FROM pg_stat_admission_gate;
DROP EXTENSION admission_gate;
