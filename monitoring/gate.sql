-- The gate on one screen, at most 100 columns wide: whether it is on; what it lets
-- through in time; which backends hold slots and which block others; the statements,
-- those that differ only in constants in one line; what is hot, and what was within 12
-- hours.
--
--   psql -X -f monitoring/gate.sql                once
--   psql -X -v every=2 -f monitoring/gate.sql     every 2 seconds, until Ctrl-C
--
-- in the database that has the extension. -v rows=N: rows of each part, default 5. Bypass
-- the gate, or this may wait, too: PGOPTIONS='-c admission_gate.bypass=on'.
--
-- in time: transactions (or statements) that ended well. refused: ended in a queue, by a
-- time-out, a full queue or a cancel. queued: in a dry run, those that would. gate: in
-- a queue (waiting), with a slot (running), or neither (no slot). blocks: how many wait
-- for locks of the backend or of others behind it. limit: max_active of the views. hot
-- spot "long from 100 ms": the queue of long statements of that range. row: its ctid.

\set QUIET on
\pset format unaligned
\pset tuples_only on
\pset pager off

\if :{?rows}
\else
	\set rows 5
\endif
\if :{?every}
	\set clear_screen '\033[H\033[2J'
\else
	\set clear_screen ''
\endif

\set pool_format '%-16s %5s %7s %7s %7s %9s %9s %9s %9s %9s'
\set holder_format '%8s %-8s %8s %7s %-19s %-10s %s'
\set statement_format '%6s %-8s %9s  %s'
\set hot_spot_format '%-35s %-12s %5s %7s %7s %7s %8s %s'
\set past_format '%-35s %-12s %5s %12s %8s %-11s %s'

-- \watch repeats a single query, and only a setting of the session outlives the
-- query. So a look is kept there for the next one; the first is taken here.
SELECT set_config('gate_screen.last',
		(SELECT json_agg(look)::text FROM (SELECT clock_timestamp() AS at, * FROM pg_stat_admission_gate) look), false) AS looked,
	pg_sleep(1) AS slept \gset

WITH RECURSIVE look AS MATERIALIZED (
	SELECT clock_timestamp() AS at, * FROM pg_stat_admission_gate
), last AS MATERIALIZED (
	SELECT *
	FROM json_to_recordset(coalesce(current_setting('gate_screen.last'), '[]')::json)
		AS (at timestamptz, pool text, completed bigint, overdue bigint, queued bigint, would_queue bigint,
			timeouts bigint, rejections bigint, cancels bigint, stats_reset timestamptz)
), kept AS MATERIALIZED (
	SELECT set_config('gate_screen.last', (SELECT json_agg(look)::text FROM look), false)
	FROM (SELECT count(*) FROM last) AS has_been_read
), backends AS MATERIALIZED (
	SELECT a.pid, a.usename, a.state, a.wait_event_type, a.wait_event, b.pool, b.gate_state,
		coalesce(b.gate_state, 'no slot') AS gate,
		extract(epoch FROM clock_timestamp() - coalesce(b.state_change, a.query_start)) AS seconds,
		regexp_replace(regexp_replace(left(a.query, 1000), '''([^'']|'''')*''|\m\d+(\.\d+)?\M', '?', 'g'), '\s+', ' ', 'g') AS statement
	FROM pg_stat_activity a LEFT JOIN pg_stat_admission_gate_backends b USING (pid)
	WHERE a.pid <> pg_backend_pid()
), pools AS (
	SELECT look.*, extract(epoch FROM look.at - last.at) AS seconds,
		(SELECT max(b.seconds) FROM backends b WHERE b.pool = look.pool AND b.gate_state = 'waiting') AS longest,
		look.completed - last.completed AS new_completed,
		look.overdue - last.overdue AS new_overdue,
		look.timeouts + look.rejections + look.cancels - last.timeouts - last.rejections - last.cancels AS new_refused,
		look.queued + look.would_queue - last.queued - last.would_queue AS new_queued
	FROM look LEFT JOIN last
		ON last.pool = look.pool AND last.stats_reset IS NOT DISTINCT FROM look.stats_reset
), in_line AS MATERIALIZED (
	SELECT pid, unnest(pg_blocking_pids(pid)) AS blocker
	FROM (SELECT pid FROM backends WHERE wait_event_type = 'Lock' ORDER BY seconds DESC LIMIT 50) AS longest
), behind (pid, behind_it) AS (
	SELECT blocker, pid FROM in_line WHERE blocker NOT IN (SELECT pid FROM in_line)
UNION
	SELECT behind.pid, in_line.pid FROM behind JOIN in_line ON in_line.blocker = behind.behind_it
), holders AS (
	SELECT *
	FROM (SELECT pid, count(*) AS blocks FROM behind GROUP BY pid) AS blockers FULL JOIN backends USING (pid)
	WHERE blocks > 0 OR gate_state = 'running'
	ORDER BY blocks DESC NULLS LAST, seconds DESC, pid
	LIMIT :rows
), statements AS (
	SELECT count(*) AS n, gate, max(seconds) AS seconds, statement
	FROM backends
	WHERE gate_state IS NOT NULL OR state = 'active'
	GROUP BY gate, statement
	ORDER BY n DESC, seconds DESC
	LIMIT :rows
), hot_spots AS (
	SELECT *, concat_ws(' ', kind, coalesce(relation, 'from ' || min_expected_time || ' ms',
			concat_ws(',', classid, objid, objsubid))) AS name
	FROM pg_stat_admission_gate_hot_spots
	WHERE contenders > 0
	ORDER BY waiting DESC, blocked DESC, hot_spot
	LIMIT :rows
), past AS (
	SELECT concat_ws(' ', kind, coalesce(relation, concat_ws(',', classid, objid, objsubid))) AS name, datname,
		count(*) AS times, max(most_in_line) AS most_in_line, round(sum(total_wait_time)::numeric / 1000, 1) AS waited,
		(array_agg(last_row ORDER BY ended DESC))[1] AS last_row, max(ended) AS ended
	FROM pg_stat_admission_gate_past_hot_spots
	WHERE ended > now() - interval '12 hours'
	GROUP BY 1, 2
	ORDER BY waited DESC, ended DESC
	LIMIT :rows
), lines (section, place, line) AS (
	SELECT 1, 0, format('%s%s  gate %s: max_active_backends = %s, mode = %s', :'clear_screen',
		date_trunc('second', clock_timestamp()),
		CASE WHEN active = '0' OR mode = 'off' THEN 'OFF' WHEN mode = 'enforce' THEN 'ON' ELSE 'OBSERVES' END, active, mode)
	FROM kept, current_setting('admission_gate.max_active_backends') active, current_setting('admission_gate.mode') mode
UNION ALL
	SELECT 1, 1, format(E'%s of %s connections; longest wait: %s; worker: %s%s\n',
		(SELECT sum(numbackends) FROM pg_stat_database), current_setting('max_connections'),
		coalesce((SELECT round(max(longest), 1) FROM pools) || ' s', 'none'), coalesce(pid::text, 'none'),
		', last sample ' || round(extract(epoch FROM clock_timestamp() - last_sample), 1) || ' s ago')
	FROM pg_stat_admission_gate_worker
UNION ALL
	SELECT 2, 0, format(:'pool_format', 'pool', 'limit', 'running', 'working', 'waiting', 'longest s',
		'in time/s', 'overdue/s', 'refused/s', 'queued/s')
UNION ALL
	SELECT 2, row_number() OVER (ORDER BY pool),
		format(:'pool_format', left(pool, 16), max_active, running, working, waiting, round(longest, 1),
			round(new_completed / seconds, 1), round(new_overdue / seconds, 1),
			round(new_refused / seconds, 1), round(new_queued / seconds, 1))
	FROM pools
UNION ALL
	SELECT 3, 0, E'\n' || format(:'holder_format', 'pid', 'gate', 'for s', 'blocks', 'does', 'user', 'statement')
	WHERE EXISTS (SELECT FROM holders)
UNION ALL
	SELECT 3, row_number() OVER (ORDER BY blocks DESC NULLS LAST, seconds DESC, pid),
		format(:'holder_format', pid, gate, round(seconds, 1), coalesce(blocks, 0),
			left(CASE state WHEN 'active' THEN coalesce(wait_event, 'works') ELSE state END, 19),
			left(usename, 10), statement)
	FROM holders
UNION ALL
	SELECT 4, 0, E'\n' || format(:'statement_format', 'number', 'gate', 'longest s', 'statement')
	WHERE EXISTS (SELECT FROM statements)
UNION ALL
	SELECT 4, row_number() OVER (ORDER BY n DESC, seconds DESC),
		format(:'statement_format', n, gate, round(seconds, 1), statement)
	FROM statements
UNION ALL
	SELECT 5, 0, E'\n' || format(:'hot_spot_format', 'hot spot', 'database', 'limit', 'running', 'blocked', 'waiting',
		'hot keys', 'last row')
	WHERE EXISTS (SELECT FROM hot_spots)
UNION ALL
	SELECT 5, row_number() OVER (ORDER BY waiting DESC, blocked DESC, hot_spot),
		format(:'hot_spot_format', left(name, 35), left(datname, 12), max_active, running, blocked, waiting, hot_keys,
			last_row)
	FROM hot_spots
UNION ALL
	SELECT 6, 0, E'\n' || format(:'past_format', 'past hot spot', 'database', 'times', 'most in line', 'waited s',
		'last row', 'ended')
	WHERE EXISTS (SELECT FROM past)
UNION ALL
	SELECT 6, row_number() OVER (ORDER BY waited DESC, ended DESC),
		format(:'past_format', left(name, 35), left(datname, 12), times, most_in_line, waited, last_row,
			to_char(ended, 'HH24:MI:SS'))
	FROM past
)
SELECT left(line, 100) FROM lines ORDER BY section, place
\if :{?every}
	\watch :every
\else
	\g
\endif
