-- The parameters: names, defaults, ranges, who may set them.
CREATE EXTENSION admission_gate;

SELECT name, vartype, unit, context, boot_val, min_val, max_val, enumvals
FROM pg_settings WHERE name LIKE 'admission\_gate.%' ORDER BY name COLLATE "C";

-- Every one is explained.
SELECT name FROM pg_settings
WHERE name LIKE 'admission\_gate.%' AND (short_desc = '' OR extra_desc IS NULL);

-- Bad values get an error and change nothing.  (Only its SQLSTATE is shown for
-- numbers with a unit: PostgreSQL 18 words it differently.)
ALTER SYSTEM SET admission_gate.max_active_backends = -2;
ALTER SYSTEM SET admission_gate.max_active_backends = 'many';
ALTER SYSTEM SET admission_gate.max_active_backends = 262144;
ALTER SYSTEM SET admission_gate.max_queue_length = -2;
\set VERBOSITY sqlstate
ALTER SYSTEM SET admission_gate.idle_after = -2;
SET admission_gate.queue_timeout = -1;
\set VERBOSITY default
ALTER SYSTEM SET admission_gate.idle_after = '1 mile';
ALTER SYSTEM SET admission_gate.hot_spots = 1.5;
ALTER SYSTEM SET admission_gate.bypass_application_names = '"one two';
ALTER SYSTEM SET admission_gate.bypass_application_names = 'one two';
ALTER SYSTEM SET admission_gate.bypass_application_names = 'one, ""';
ALTER SYSTEM SET admission_gate.bypass_application_names = 'one, t*o';
ALTER SYSTEM SET admission_gate.bypass_application_names = 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn';
ALTER SYSTEM SET admission_gate.mode = 'dry_run';
SET admission_gate.bypass = 'perhaps';
SELECT name, setting = boot_val AS unchanged
FROM pg_settings
WHERE name IN ('admission_gate.bypass', 'admission_gate.queue_timeout')
ORDER BY name COLLATE "C";

-- The limit is the server's, not the session's.
SET admission_gate.max_active_backends = 100;
SET admission_gate.max_queue_length = 100;
SET admission_gate.mode = 'observe';
SET admission_gate.hot_spots = off;
SET admission_gate.idle_after = 100;
SET admission_gate.bypass_application_names = '*';

-- Misspelt parameters are found.
SET admission_gate.max_backends = 1;

-- What limits a user, the user cannot lift; how long to wait is his to say.
SET ROLE regress_gate_user;
SET admission_gate.bypass = on;
SET admission_gate.queue_timeout = '2s';
SHOW admission_gate.queue_timeout;
RESET admission_gate.queue_timeout;
RESET ROLE;

-- A superuser may allow it for a role.
ALTER ROLE regress_gate_user SET admission_gate.bypass = on;
SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'regress_gate_user'::regrole;
-- A pool that is not defined is told of.
ALTER ROLE regress_gate_user SET admission_gate.pool = 'btach';
ALTER ROLE regress_gate_user RESET ALL;
DROP EXTENSION admission_gate;
