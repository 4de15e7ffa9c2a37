-- The list of pools: what it may be, and what is refused.
CREATE EXTENSION admission_gate;

-- Whatever is refused changes nothing.
ALTER SYSTEM SET admission_gate.pools = 'web: priority = 10, batch: max_active = 4';
ALTER SYSTEM SET admission_gate.pools = 'web';
ALTER SYSTEM SET admission_gate.pools = 'web, batch';
ALTER SYSTEM SET admission_gate.pools = 'web batch';
ALTER SYSTEM SET admission_gate.pools = ';';
ALTER SYSTEM SET admission_gate.pools = 'web;;batch';
ALTER SYSTEM SET admission_gate.pools = ': max_active = 1';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 1: batch';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active 4';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active =';
ALTER SYSTEM SET admission_gate.pools = 'web: = 4';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 4,';
ALTER SYSTEM SET admission_gate.pools = 'web: , max_active = 4';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 4 priority = 1';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = four';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 4.5.6';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 4kB';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 0x';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 000000000000000000000000000000004 or so';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = -1';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 262144';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 99999999999';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 1, max_active = 2';
ALTER SYSTEM SET admission_gate.pools = 'web: max_active = 1; WEB: max_active = 2';
ALTER SYSTEM SET admission_gate.pools = 'default; batch; default';
ALTER SYSTEM SET admission_gate.pools = 'web: limit = 4';
ALTER SYSTEM SET admission_gate.pools = 'web: priority = high';
ALTER SYSTEM SET admission_gate.pools = 'web: priority = 1001';
ALTER SYSTEM SET admission_gate.pools = 'web: priority = -1001';
ALTER SYSTEM SET admission_gate.pools = 'web: max_queue_length = -2';
ALTER SYSTEM SET admission_gate.pools = 'web: max_queue_length = unlimited';
ALTER SYSTEM SET admission_gate.pools = 'web: queue_timeout = -1';
ALTER SYSTEM SET admission_gate.pools = 'web: queue_timeout = 1 mile';
ALTER SYSTEM SET admission_gate.pools = 'web: queue_timeout = 1 month of sundays, or so';
ALTER SYSTEM SET admission_gate.pools = 'web: queue_timeout = 30d30';
ALTER SYSTEM SET admission_gate.pools = '{web: 4}';
ALTER SYSTEM SET admission_gate.pools = '"web": max_active = 4';
ALTER SYSTEM SET admission_gate.pools = 'web=4';
ALTER SYSTEM SET admission_gate.pools = 'web.1';
SELECT format('ALTER SYSTEM SET admission_gate.pools = %L', repeat('x', 64)) \gexec
SELECT format('ALTER SYSTEM SET admission_gate.pools = %L', string_agg('p' || i, ';')) FROM generate_series(1, 32) i \gexec
SET admission_gate.pools = 'web';
SELECT setting FROM pg_file_settings WHERE name = 'admission_gate.pools';

-- What is understood
CREATE FUNCTION pools_are(pools text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  found text;
BEGIN
  FOR i IN 1..6000 LOOP
    found := string_agg(concat_ws(' ', pool, max_active, priority), ', ' ORDER BY pool COLLATE "C")
      FROM pg_stat_admission_gate;
    IF found = pools THEN
      RETURN;
    END IF;
    PERFORM pg_sleep(0.01);
  END LOOP;
  RAISE 'pools are %', found;
END
$$;
ALTER SYSTEM SET admission_gate.pools = 'web: max_active=16, priority=1000; batch: max_active=4, max_queue_length=100, queue_timeout=30s; default: max_active=2;';
SELECT pg_reload_conf();
SELECT pools_are('batch 4 0, default 2 0, web 16 1000');
ALTER SYSTEM SET admission_gate.pools = '  Web-2 :Priority= -1000 ,MAX_ACTIVE =1;	no_limit; empty: ; ';
SELECT pg_reload_conf();
SELECT pools_are('default 0 0, empty 0 0, no_limit 0 0, web-2 1 -1000');
SELECT pg_stat_admission_gate_reset();
SELECT pool, mode, max_active, priority, admitted FROM pg_stat_admission_gate ORDER BY pool COLLATE "C";
SELECT count(DISTINCT pool) FROM pg_stat_admission_gate_histogram;
SELECT format('ALTER SYSTEM SET admission_gate.pools = %L', string_agg('p' || i, ';')) FROM generate_series(1, 31) i \gexec
SELECT pg_reload_conf();
SELECT pools_are((SELECT string_agg(name || ' 0 0', ', ' ORDER BY name COLLATE "C")
                  FROM (SELECT 'p' || i AS name FROM generate_series(1, 31) i UNION SELECT 'default') AS names));
ALTER SYSTEM RESET admission_gate.pools;
SELECT pg_reload_conf();
SELECT pools_are('default 0 0');
DROP FUNCTION pools_are;
DROP EXTENSION admission_gate;
