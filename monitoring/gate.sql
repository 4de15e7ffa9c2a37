-- The gate on one screen: its worker, the pools and their rates, the hot spots with
-- the longest queues, those with the longest waits that ended within 12 hours, and
-- the backends that have waited longest.
--
--   psql -X -f monitoring/gate.sql                once
--   psql -X -v every=2 -f monitoring/gate.sql     every 2 seconds, until Ctrl-C
--
-- in the database that has the extension. Rates and mean waits are those since the
-- last look, so the first look has none. refused: by queue_timeout, max_queue_length,
-- a cancel or the like. queued: in a dry run, those that would. limit: max_active of the
-- views; -1 if only hot spots and long statements have limits. hot spot "long from 100
-- ms": the queue of long statements of that range. hottest row, last row: its ctid.
--
-- -v waiters=N: how many waiters to show, default 10. Bypass the gate, or this may
-- wait, too, when it is full: PGOPTIONS='-c admission_gate.bypass=on'.

\set QUIET on
\pset format unaligned
\pset tuples_only on
\pset pager off

\if :{?waiters}
\else
	\set waiters 10
\endif
\if :{?every}
	\set clear_screen '\033[H\033[2J'
\else
	\set clear_screen ''
\endif

\set pool_format '%-12s %-8s %8s %8s %8s %8s %11s %9s %10s %9s'
\set hot_spot_format '%-44s %-16s %8s %10s %8s %8s %8s %8s  %-12s %s'
\set past_format '%-44s %-16s %8s %12s %10s  %-12s %s'
\set waiter_format '%8s %12s  %-12s %-12s %s'

-- \watch repeats a single query, and only a setting of the session outlives the
-- query. So a look is kept there for the next one.
WITH look AS MATERIALIZED (
	SELECT clock_timestamp() AS at, g.*, timeouts + rejections + cancels AS refused,
		queued + would_queue AS arrived,
		(SELECT sum(waits) FROM pg_stat_admission_gate_histogram h WHERE h.pool = g.pool) AS waits
	FROM pg_stat_admission_gate g
), last AS MATERIALIZED (
	SELECT *
	FROM json_to_recordset(coalesce(nullif(current_setting('gate_screen.last', true), ''), '[]')::json)
		AS (at timestamptz, pool text, admitted bigint, arrived bigint, refused bigint,
			waits bigint, total_wait_time float8, stats_reset timestamptz)
), kept AS MATERIALIZED (
	SELECT set_config('gate_screen.last', (SELECT json_agg(look)::text FROM look), false)
	FROM (SELECT count(*) FROM last) AS has_been_read
), pools AS (
	SELECT look.*,
		extract(epoch FROM look.at - last.at) AS seconds,
		look.admitted - last.admitted AS new_admitted,
		look.arrived - last.arrived AS new_queued,
		look.refused - last.refused AS new_refused,
		(look.total_wait_time - last.total_wait_time) / nullif(look.waits - last.waits, 0) AS mean_wait
	FROM look LEFT JOIN last
		ON last.pool = look.pool AND last.stats_reset IS NOT DISTINCT FROM look.stats_reset
), hot_spots AS (
	SELECT *, concat_ws(' ', kind, coalesce(relation, lwlock, 'from ' || min_expected_time || ' ms',
			concat_ws(',', classid, objid, objsubid))) AS name
	FROM pg_stat_admission_gate_hot_spots
	WHERE contenders > 0
	ORDER BY waiting DESC, blocked DESC, hot_spot
	LIMIT 5
), past AS (
	SELECT concat_ws(' ', kind, coalesce(relation, concat_ws(',', classid, objid, objsubid))) AS name, datname,
		count(*) AS times, max(most_in_line) AS most_in_line, round(sum(total_wait_time)::numeric / 1000, 1) AS waited,
		(array_agg(last_row ORDER BY ended DESC))[1] AS last_row, max(ended) AS ended
	FROM pg_stat_admission_gate_past_hot_spots
	WHERE ended > now() - interval '12 hours'
	GROUP BY 1, 2
	ORDER BY waited DESC, ended DESC
	LIMIT 5
), waiters AS (
	SELECT pid, b.wait_time, usename, datname, query
	FROM pg_stat_admission_gate_backends b LEFT JOIN pg_stat_activity a USING (pid)
	WHERE b.gate_state = 'waiting'
	ORDER BY b.wait_time DESC NULLS LAST, pid
	LIMIT :waiters
), lines (section, place, line) AS (
	SELECT 1, 0, format(E'%s%s   worker: %s%s\n', :'clear_screen',
		date_trunc('second', clock_timestamp()), coalesce(pid::text, 'none'),
		', last sample ' || round(extract(epoch FROM clock_timestamp() - last_sample), 1) || ' s ago')
	FROM kept, pg_stat_admission_gate_worker
UNION ALL
	SELECT 2, 0, format(:'pool_format', 'pool', 'mode', 'limit', 'running', 'working', 'waiting',
		'admitted/s', 'queued/s', 'refused/s', 'ms/wait')
UNION ALL
	SELECT 3, row_number() OVER (ORDER BY pool),
		format(:'pool_format', pool, mode,
			max_active, running, working, waiting,
			round(new_admitted / seconds, 1), round(new_queued / seconds, 1),
			round(new_refused / seconds, 1), round(mean_wait::numeric, 1))
	FROM pools
UNION ALL
	SELECT 4, 0, E'\n' || format(:'hot_spot_format', 'hot spot', 'database', 'limit', 'contenders', 'running',
		'blocked', 'waiting', 'hot keys', 'hottest row', 'since')
	WHERE EXISTS (SELECT FROM hot_spots)
UNION ALL
	SELECT 5, row_number() OVER (ORDER BY waiting DESC, blocked DESC, hot_spot),
		format(:'hot_spot_format', left(name, 44), datname, max_active, contenders, running,
			blocked, waiting, hot_keys, hottest_row, date_trunc('second', since)::timetz)
	FROM hot_spots
UNION ALL
	SELECT 6, 0, E'\n' || format(:'past_format', 'past hot spot', 'database', 'times', 'most in line', 'waited s',
		'last row', 'ended')
	WHERE EXISTS (SELECT FROM past)
UNION ALL
	SELECT 7, row_number() OVER (ORDER BY waited DESC, ended DESC),
		format(:'past_format', left(name, 44), datname, times, most_in_line, waited, last_row,
			date_trunc('second', ended)::timetz)
	FROM past
UNION ALL
	SELECT 8, 0, E'\n' || format(:'waiter_format', 'pid', 'waited ms', 'user', 'database', 'statement')
	WHERE EXISTS (SELECT FROM waiters)
UNION ALL
	SELECT 9, row_number() OVER (ORDER BY wait_time DESC NULLS LAST, pid),
		format(:'waiter_format', pid, round(wait_time::numeric, 1), usename, datname,
			left(regexp_replace(query, '\s+', ' ', 'g'), 60))
	FROM waiters
)
SELECT line FROM lines ORDER BY section, place
\if :{?every}
	\watch :every
\else
	\g
\endif
