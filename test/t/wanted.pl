# Proves that a statement queues for what it wants, and its session does not: whatever
# shape it has, at any level and in the middle of a transaction; that what it does not want,
# or what cannot be known, passes; and that a wait there can end in every way.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

# Idle for less than idle_after, a session keeps its place.
my $gate = GateTest->new(
	'wanted',
	max_active_backends => -1,
	idle_after => 30_000,
	max_connections => 100,
	max_prepared_transactions => 1,
	deadlock_timeout => '100ms',
	max_queue_length => 0,
	log_statement => 'none',
	pools => 'crowd: max_queue_length = -1; waits: max_queue_length = -1; limited: max_active = 16');

$gate->value(
	'CREATE TABLE sale (id serial PRIMARY KEY, n int, code text UNIQUE, price numeric DEFAULT 1) WITH (fillfactor = 20)',
	q{INSERT INTO sale SELECT id, 0, 'c' || id FROM generate_series(1, 100) id},
	q{SELECT setval('sale_id_seq', 1000)},
	'CREATE TABLE other AS SELECT id, 0 AS n FROM generate_series(1, 100) id',
	'CREATE TABLE child (id int REFERENCES sale)',
	'CREATE TABLE log (id int)',
	'CREATE FUNCTION sell(item int) RETURNS void LANGUAGE plpgsql AS
		$$ BEGIN UPDATE sale SET n = n + 1 WHERE id = item; END $$',
	q{CREATE FUNCTION sell_sql(item int, called text DEFAULT 'c1') RETURNS void LANGUAGE sql AS
		$$ UPDATE sale SET n = n + 1 WHERE id = item AND code = called $$},
	'CREATE FUNCTION sell_logged() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN UPDATE sale SET n = n + 1 WHERE id = new.id; RETURN NULL; END $$',
	'CREATE TRIGGER sell AFTER INSERT ON log FOR EACH ROW EXECUTE FUNCTION sell_logged()',
	'CREATE ROLE stranger',
	'CREATE PROCEDURE sell_all(item int) LANGUAGE plpgsql AS
		$$ BEGIN COMMIT; UPDATE sale SET n = n + 1 WHERE id = item; COMMIT; END $$',
	'CREATE PROCEDURE sell_and_rest(item int) LANGUAGE plpgsql AS
		$$ BEGIN UPDATE sale SET n = n + 1 WHERE id = item; COMMIT; PERFORM pg_sleep(0.2); END $$');

# The hot row.  Its crowd holds it while it sleeps: others find no place free.
my %of_crowd = (session => { 'admission_gate.pool' => 'crowd' });
my $hot_row = 'UPDATE sale SET n = n + 1 WHERE id = 1 RETURNING pg_sleep(0.01);';
my $want = 'UPDATE sale SET n = n + 1 WHERE id = 1';
my $crowd = $gate->crowd(24, $hot_row, %of_crowd);

sub spot
{
	my ($what, $kind) = @_;
	$kind //= 'relation';
	return $gate->value("SELECT $what FROM pg_stat_admission_gate_hot_spots WHERE kind = '$kind'");
}

sub await_queue
{
	my ($kind) = @_;
	return $gate->ok_comes(sub { spot('max_active > 0 AND waiting > 3', $kind) eq 't' }, 'there is a queue') || die;
}

# Runs a statement until it is refused, since the queue of the hot row is full: it may first
# find a place.  Returns the error, or none if that never happens.
sub refusal
{
	my ($session, $sql, $tries) = @_;

	foreach (1 .. $tries)
	{
		my $error = $session->start($sql)->result->{error};
		$session->query('ROLLBACK');
		return $error if $error && $error->{C} eq '53400';
		diag "$error->{C}: $error->{M}" if $error;
	}
	return;
}

sub ok_queues_for
{
	my ($what, @sql) = @_;
	my $session = $gate->session(session => { plan_cache_mode => 'force_generic_plan' });
	my $last = pop @sql;

	$session->query($_) foreach @sql;
	my $error = refusal($session, $last, 300);
	return like($error && $error->{D}, qr/^The limit of relation "sale" is /, "$what queues");
}

sub ok_passes_by
{
	my ($what, $sql) = @_;
	return is(refusal($gate->session, $sql, 20), undef, "$what does not queue");
}

await_queue();
is(spot('hot_keys'), '1', 'one thing is hot there');
$gate->ok_comes('sum(id) = 1 FROM sale s JOIN pg_stat_admission_gate_hot_spots h ON s.ctid = h.last_row',
	'the view names the row');
$gate->ok_comes(
	"count(*) = 1 FROM pg_stat_activity a JOIN pg_stat_admission_gate_hot_spots h ON h.waiter = a.pid
	WHERE a.query LIKE '%sale%'", 'and one that waits');

# What wants it: what it is, and statements, of which the last one is refused
for (
	[ 'an UPDATE', $want ],
	[ 'an UPDATE with other conditions', "$want AND n >= 0 AND code = 'c1'" ],
	[ 'a DELETE', 'DELETE FROM sale WHERE id = 1 AND n < 0' ],
	[ 'SELECT FOR UPDATE', 'SELECT n FROM sale WHERE 1 = id FOR UPDATE' ],
	[ 'SELECT FOR NO KEY UPDATE', 'SELECT n FROM sale WHERE id = 1 FOR NO KEY UPDATE' ],
	[ 'an UPDATE with a parameter', 'PREPARE p(int) AS UPDATE sale SET n = n + 1 WHERE id = $1', 'EXECUTE p(1)' ],
	[ 'an UPDATE in a function', 'SELECT sell(1)' ],
	[ 'an UPDATE in a function of SQL', 'SELECT sell_sql(2, NULL)', 'SELECT sell_sql(1)' ],
	[ 'an UPDATE in a trigger', 'INSERT INTO log VALUES (1)' ],
	[ 'an UPDATE in a procedure that commits', 'CALL sell_all(1)' ],
	[ 'a CTE', "WITH c AS ($want RETURNING n) SELECT n FROM c" ],
	[ 'a cursor', 'BEGIN; SELECT 1; DECLARE c CURSOR FOR SELECT n FROM sale WHERE id = 1 FOR UPDATE' ],
	[ 'INSERT ... ON CONFLICT', 'INSERT INTO sale VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET n = sale.n + 1' ],
	[ 'one after other work', "BEGIN; SELECT 1; UPDATE other SET n = 0 WHERE id = 1; $want" ],
	[ 'one in a savepoint', "BEGIN; SELECT 1; SAVEPOINT a; $want" ],
	[
		'one at REPEATABLE READ',
		"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; SELECT n FROM sale WHERE id = 1 FOR UPDATE"
	])
{
	ok_queues_for(@$_);
	# A key of its own would have become hot, too, before a refusal.
	is(spot('hot_keys'), '1', 'and wants the same thing');
}

# What does not, what may go on beside others, and what is not known before it runs
for (
	[ 'a read', 'SELECT n FROM sale WHERE id = 1' ],
	[ 'another row', 'UPDATE sale SET n = n + 1 WHERE id = 2' ],
	[ 'an INSERT', 'INSERT INTO sale SELECT max(id) + 1 FROM sale' ],
	[ 'another table', 'UPDATE other SET n = n + 1 WHERE id = 1' ],
	[ 'a foreign key', 'INSERT INTO child VALUES (1)' ],
	[ 'FOR KEY SHARE', 'SELECT n FROM sale WHERE id = 1 FOR KEY SHARE' ],
	[ 'SKIP LOCKED', 'SELECT n FROM sale WHERE id = 1 FOR UPDATE SKIP LOCKED' ],
	[ 'an unknown row', 'UPDATE sale SET n = n + 1 WHERE id = (SELECT min(id) FROM other)' ],
	[ 'EXPLAIN', "EXPLAIN $want" ],
	[
		'a WITH query of another row',
		'WITH u AS (UPDATE sale SET n = n WHERE id = 77 RETURNING id) INSERT INTO log SELECT 2 FROM u'
	])
{
	ok_passes_by(@$_);
}
is(refusal($gate->session, "BEGIN; SELECT 1; SET LOCAL admission_gate.bypass = on; $want", 5),
	undef, 'one with the bypass does not queue');
my $stranger = $gate->session;
$stranger->query('SET ROLE stranger');
is($stranger->start($want)->sqlstate, '42501', 'a role without the privilege does not queue') foreach 1 .. 20;
my $limited = $gate->session(session => { 'admission_gate.pool' => 'limited' });
is(refusal($limited, $want, 20), undef, 'a pool with max_active has no hot spots');

# A session that always wants the row waits at its BEGIN, and no more in the middle.
sub end_without_habit { my ($session) = @_; return $session->query('ROLLBACK', 'SELECT 1'); }

# A refusal in the middle of a transaction: the savepoint fails, and nothing else
my $session = $gate->session;
my $error;
$gate->ok_comes(
	sub {
		$session->query('BEGIN', 'INSERT INTO other VALUES (0, 0)', 'SAVEPOINT a');
		$error = $session->start($want)->result->{error};
		end_without_habit($session) if !$error;
		return $error;
	},
	'a statement in a savepoint is refused');
is("$error->{C} $error->{M}", '53400 too many backends are waiting for admission', 'its error');
is($error->{H}, 'Try again later, or increase admission_gate.max_queue_length.', 'and its hint');
$session->query('ROLLBACK TO a');
is($session->query('SELECT count(*) FROM other WHERE id = 0'), '1', 'the transaction goes on');
is($gate->state($session), 'running', 'with its slot');
$session->query('COMMIT');
is($gate->value('SELECT count(*) FROM other WHERE id = 0'), '1', 'and commits');
is( $gate->session->query(
		"DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP BEGIN $want; EXCEPTION WHEN configuration_limit_exceeded THEN
		INSERT INTO other VALUES (-1, 0); END; END LOOP; END \$\$; SELECT count(*) > 0 FROM other WHERE id = -1"),
	't',
	'a function can catch it');

# A wait in the middle of a transaction: the slot is given up, and the place comes with
# the slot.  Returns once the session waits there.
sub waits_for_place
{
	my ($waiter, @before) = @_;
	return $gate->await_true(
		sub {
			if ($waiter->done)
			{
				$waiter->result;    # of what did not wait
				end_without_habit($waiter);
				$waiter->query('BEGIN', 'SELECT 1', @before);
				$waiter->start($want);
			}
			$gate->await_true(sub { $waiter->done || $gate->state($waiter) eq 'waiting' }, 'a wait or an end');
			return $gate->state($waiter) eq 'waiting';
		},
		'a wait for a place');
}

my %waits = (session => { 'admission_gate.pool' => 'waits' });
$session = $gate->session(%waits);
ok(waits_for_place($session, 'SAVEPOINT a'), 'a transaction waits in its middle');
is($gate->activity($session, 'backend_xmin IS NULL'), 't', 'without a snapshot, also after a savepoint');
is($session->sqlstate, '00000', 'and has its turn');
is($session->query("UPDATE other SET n = n + 1 WHERE id = 7; $want RETURNING true"), 't', 'it goes on');
$session->query('COMMIT');

# Its turn may come first, and the signal find a later statement.
for my $end ([ pg_terminate_backend => '57P01' ], [ pg_cancel_backend => '57014' ])
{
	my ($function, $sqlstate) = @$end;
	$gate->ok_comes(
		sub {
			$session->quit;
			$session = $gate->session(%waits);
			waits_for_place($session) or return 0;
			$gate->value("SELECT $function(" . $session->pid . ')');
			return $session->sqlstate eq $sqlstate;
		},
		"$function ends such a wait");
}
is($session->start('SELECT 1')->sqlstate, '25P02', 'then the transaction has failed');
$session->query('ROLLBACK');
is($session->query('SELECT 1'), '1', 'and the session goes on');
for my $end ([ lock_timeout => '55P03' ], [ 'admission_gate.queue_timeout' => '53000' ])
{
	my ($setting, $sqlstate) = @$end;
	$session->query("SET $setting = '5ms'");
	$gate->ok_comes(
		sub {
			my $timeouts = $gate->counter('timeouts', 'waits');
			$session->query('BEGIN', 'SELECT 1');
			$error = $session->start($want)->result->{error};
			end_without_habit($session);
			return $error && $error->{C} eq $sqlstate && $gate->counter('timeouts', 'waits') > $timeouts;
		},
		"$setting ends it, too");
	$session->query("RESET $setting");
}
my $figures = qr/\d+ at a time \(\d+ in use, \d+ waiting\); this backend has waited for \d+ ms\.$/;
like($error->{D}, qr/^The limit of relation "sale" is $figures/, 'the error tells for what, and how it stands');
is($error->{H}, 'Try again later, or increase admission_gate.queue_timeout.', 'and what to do');
ok(waits_for_place($session), 'another waits');
$session->hang_up;

# One in the queue goes first if another session waits for its lock.
my $awaits = $gate->session;
my $first = 0;
$gate->ok_comes(
	sub {
		# One that has wanted the row before may queue at its BEGIN.
		$session = $gate->session(%waits);
		$session->query('BEGIN', 'SELECT 1', 'UPDATE other SET n = n + 1 WHERE id = 50');
		$session->start($want);
		$awaits->start('UPDATE other SET n = n + 1 WHERE id = 50');
		$session->sqlstate;
		my $mine = $gate->state($session, 'wait_time');
		my $longest =
		  $gate->value(q{SELECT max(wait_time) FROM pg_stat_admission_gate_backends WHERE gate_state = 'waiting'});
		$session->query('COMMIT');
		$awaits->finish;
		$first = $mine < $longest / 2 ? $first + 1 : 0;
		return $first == 3;
	},
	'one that holds a lock which others want goes first');

# Places without a crowd: it leaves, and its row stays hot for a while.
sub heat
{
	return if spot('running + waiting + blocked') eq '0';
	my $heating = $gate->crowd(24, $hot_row, %of_crowd);
	$gate->await(sub { spot('max_active > 0 AND waiting > 3') eq 't' }, 'a queue');
	$gate->stop_crowd($heating);
	return $gate->await(sub { spot('running + waiting') eq '0' }, 'no place is left behind');
}

$gate->stop_crowd($crowd);
for (
	[ 'a place is kept to the end of the transaction', [$want], 1 ],
	[ 'a savepoint that fails gives it back', [ 'SAVEPOINT a', $want, 'ROLLBACK TO a' ], 0 ],
	[ 'one that ends well does not', [ 'SAVEPOINT a', $want, 'RELEASE a' ], 1 ],
	[ 'nor one after it', [ $want, 'SAVEPOINT a', $want, 'ROLLBACK TO a' ], 1 ],
	[ 'nor one after the one that took it', [ 'SAVEPOINT a', $want, 'RELEASE a', 'SAVEPOINT b', 'ROLLBACK TO b' ], 1 ],
	[ 'an inner one that fails later', [ 'SAVEPOINT a', 'SAVEPOINT b', $want, 'RELEASE b', 'ROLLBACK TO a' ], 0 ],
	[ 'PREPARE TRANSACTION does, too', [ $want, q{PREPARE TRANSACTION 'p'} ], 0 ])
{
	my ($what, $sql, $places) = @$_;
	my $owner = $gate->session;
	$gate->ok_comes(
		sub {
			heat();
			$owner->query('BEGIN', 'SELECT 1', @$sql);
			my $running = spot('running');
			$owner->query('COMMIT');
			$gate->end_prepared_transactions;
			# The hot spot may have ended meanwhile.
			return $running eq $places && spot('running') eq '0';
		},
		$what);
}

my $owner = $gate->session;
$gate->ok_comes(
	sub {
		heat();
		$owner->start('CALL sell_and_rest(1)');
		$gate->await_wait_event_type($owner, 'Timeout');
		my $running = spot('running');
		$owner->result;
		return $running eq '0';
	},
	'a procedure that commits gives it back');

# Until what was learned of the row is forgotten
sub forget
{
	my $session = $gate->session;
	return $gate->ok_comes(sub { $session->query('SELECT 1'); spot('count(*)') eq '0' }, 'the hot spot ends');
}

# A limit for all: one that has a place there does not wait for a slot with its locks.
$gate->set(max_active_backends => 8, max_queue_length => -1, idle_after => -1);
forget();
$crowd = $gate->crowd(24, "BEGIN; SELECT 1;\n$hot_row\nCOMMIT;");
await_queue();
$session = $gate->session;
$session->query(q{BEGIN; SELECT 1; SET LOCAL statement_timeout = '20s'});
my @workers = map { $gate->worker } 1 .. 7;

# These come before it, and give no slot back.
my @next = map { $gate->waiter('DO $$ BEGIN LOOP END LOOP; END $$') } 1 .. 2;
is($session->start($want)->sqlstate, '00000', 'under a limit, one that has its place does not wait for a slot');
$session->query('COMMIT');
$_->stop foreach (@workers, @next);
$gate->ok_stops($crowd);

# By another unique column than the primary key, which is not known before
$gate->set(max_active_backends => -1, max_queue_length => 0, idle_after => 30_000);
forget();
$crowd = $gate->crowd(24, $hot_row =~ s/id = 1/code = 'c1'/r, %of_crowd);
await_queue();
my $hot_keys = spot('hot_keys');
ok_queues_for('INSERT ... ON CONFLICT by that',
	"INSERT INTO sale (code) VALUES ('c1') ON CONFLICT (code) DO UPDATE SET n = 0");
cmp_ok(spot('hot_keys'), '<=', $hot_keys, 'and wants the same row');
$gate->ok_stops($crowd);

# A number is the same with more zeros.
forget();
$crowd = $gate->crowd(24, $hot_row =~ s/id = 1/code = 'c1' AND price = 1.0/r, %of_crowd);
await_queue();
ok_queues_for('an UPDATE with another scale', "UPDATE sale SET n = n + 1 WHERE price = 1.000 AND code = 'c1'");
is(spot('hot_keys'), '1', 'and wants the same row');
$gate->ok_stops($crowd);

# Some name the hot row, but find nothing that they would lock: they do not make each other
# wait for it.
my $polls = $gate->crowd(16, "UPDATE sale SET n = n WHERE code = 'c1' AND n < 0;", %of_crowd);
$crowd = $gate->crowd(24, $hot_row =~ s/id = 1/code = 'c1'/r, %of_crowd);
$gate->ok_comes(sub { (spot('contenders > 8 AND hot_keys = 0') // '') eq 't' }, 'a key that few wait for is not hot');
ok_passes_by('a poll', "UPDATE sale SET n = n WHERE code = 'c1' AND n < 0");
$gate->stop_crowd($polls);
$gate->ok_stops($crowd);

# INSERTs that conflict show no key: others into the table do not queue for a guess.
$crowd = $gate->crowd(24, "BEGIN;\nINSERT INTO sale (code) VALUES ('x');\n\\sleep 3 ms\nROLLBACK;", %of_crowd);
$gate->ok_comes(sub { spot('max_active > 0') eq 't' }, 'conflicting INSERTs form a hot spot');
ok_passes_by('an INSERT without a known key', 'INSERT INTO sale (n) VALUES (0)') foreach 1 .. 5;
is(spot('hot_keys'), '0', 'as none of them has a key');
$gate->ok_stops($crowd);

# Advisory locks are known by their arguments: a key of two halves, and those of other keys
my $lock = 'SELECT pg_advisory_xact_lock';
for (
	[
		'3, 42',
		'3, 42, 2',
		[
			'SELECT * FROM pg_advisory_xact_lock(3, 42)',
			"$lock(42), pg_advisory_xact_lock(3, 42)",
			"DO \$\$ DECLARE i int := 42; BEGIN PERFORM pg_advisory_xact_lock(3, i); END \$\$"
		],
		[ "$lock(42, 3)", "${lock}_shared(42, 3)", 'SELECT pg_try_advisory_xact_lock(3, 42)' ]
	],
	[ 1 << 33, '2, 0, 1', [], [ "$lock(0)", "$lock(1::bigint << 34)" ] ])
{
	my ($key, $shown, $same, $others) = @$_;
	$crowd = $gate->crowd(24, "$lock($key), pg_sleep(0.005);", %of_crowd);
	await_queue('advisory');
	is(spot('ROW(classid, objid, objsubid)', 'advisory'), "($shown)" =~ s/ //gr, 'it has the key that pg_locks shows');
	$session = $gate->session;
	foreach my $sql ("$lock($key)", @$same)
	{
		$error = refusal($session, $sql, 300);
		like($error && $error->{D}, qr/advisory lock \($shown\)/, "$sql queues");
	}
	ok_passes_by($_, $_) foreach @$others;
	$gate->ok_stops($crowd);
}

# LOCK TABLE names its relation.
$crowd = $gate->crowd(24, "BEGIN; LOCK TABLE log IN EXCLUSIVE MODE;\n\\sleep 3 ms\nCOMMIT;", %of_crowd);
$gate->ok_comes(sub { spot("bool_or(relation = 'log' AND max_active > 0 AND waiting > 3)") eq 't' },
	'there is a queue');
my $lock_table = 'BEGIN; LOCK TABLE log IN EXCLUSIVE MODE';
$error = refusal($session, $lock_table, 300);
like($error && $error->{D}, qr/relation "log"/, 'LOCK TABLE queues');
is($stranger->start("ROLLBACK; $lock_table")->sqlstate, '42501', 'not without the privilege') foreach 1 .. 20;
ok_passes_by('LOCK TABLE in a mode that is shared', 'BEGIN; LOCK TABLE log IN ROW EXCLUSIVE MODE');
ok_passes_by('an INSERT in a WITH query, which does not want the whole table,',
	'WITH i AS (INSERT INTO log SELECT id FROM other WHERE n < 0) UPDATE other SET n = n');
$gate->ok_stops($crowd);

$gate->finish;
