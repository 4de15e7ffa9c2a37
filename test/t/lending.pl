# Proves that nothing hangs behind the gate: whoever holds a slot but waits, for
# its client or for somebody in the queue, lends it; and a transaction that was
# admitted once never waits at the gate again.
#
# Each piece gets stuck when lending is off, but for those which say that something
# else lets them pass.  That is tested, too: see piece in GateTest.pm.  (Stuck for
# less than a second: then the last resort comes.  See nothing_stuck.pl.)

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use POSIX qw(sysconf _SC_CLK_TCK);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $gate = GateTest->new('lending');

$gate->value($_)
  foreach ('CREATE TABLE t (id int PRIMARY KEY, v int)', 'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i');

# More than any socket buffers
my $huge_result = "SELECT repeat('x', 1000) FROM generate_series(1, 30000)";

# How much CPU time the session's process has used, in seconds, if the kernel tells
sub cpu_time
{
	my ($session) = @_;

	my $file = '/proc/' . $session->pid . '/stat';
	return if !-r $file;
	my @fields = split / /, slurp_file($file) =~ s/.*\)//r;
	return ($fields[12] + $fields[13]) / sysconf(_SC_CLK_TCK);
}

# The session can run a statement.
sub works
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($session->query('SELECT count(*) FROM t WHERE id = 1'), '1', $what);
	return;
}

# ----------------------------------------------------------------
# Waits for locks
# ----------------------------------------------------------------

$gate->piece(
	'two holders and a queued reader',
	{ max_active_backends => 2, lend_after => 60_000 },
	sub {
		my ($ddl, $other, $reader) = map { $gate->session } 1 .. 3;
		$_->query('BEGIN') foreach ($ddl, $other);
		$reader->start('SELECT count(*) FROM t');
		$gate->await_queued($reader);
		$ddl->start('ALTER TABLE t SET (fillfactor = 50), ALTER v SET NOT NULL');
		$gate->await(
			q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 't'::regclass AND mode = 'AccessExclusiveLock'});
		$other->start('SELECT count(*) FROM t');
		$gate->await_wait_event_type($other, 'Lock');
		$gate->set(lend_after => 100);
		is($reader->finish, '1000', 'a reader in the queue is let in by the DDL that waits for its lock');
		is($ddl->sqlstate, '00000', 'then the DDL runs');
		$ddl->query('COMMIT');
		is($other->finish, '1000', 'then the reader behind the DDL');
		$other->query('COMMIT');
	},
	is_let_in => 1);

$gate->piece(
	'a row lock between two statements',
	{ max_active_backends => 1 },
	sub {
		my ($owner, $waiter) = map { $gate->session } 1 .. 2;
		$owner->query('BEGIN; UPDATE t SET v = 1 WHERE id = 1');
		$waiter->start('UPDATE t SET v = 2 WHERE id = 1');
		$gate->await_wait_event_type($waiter, 'Lock');
		works($owner, 'the owner of a row lock goes on beside the one who waits for it');
		$owner->query('COMMIT');
		is($waiter->sqlstate, '00000', 'and the waiter has the lock when it commits');
	});

# Without lending at all: this is forced entry.
$gate->piece(
	'a row lock in statement scope',
	{ max_active_backends => 1, lend_after => -1 },
	sub {
		my ($owner, $waiter) =
		  map { $gate->session(session => { 'admission_gate.scope' => 'statement' }) } 1 .. 2;
		$owner->query('BEGIN');
		$owner->query('UPDATE t SET v = 1 WHERE id = 1');
		$waiter->start('UPDATE t SET v = 2 WHERE id = 1');
		$gate->await_wait_event_type($waiter, 'Lock');
		is($gate->gauges, '1|0|0', 'the one who waits for a row lock has the only slot');
		works($owner, 'the next statement of the owner is forced in');
		$owner->query('COMMIT');
		is($waiter->sqlstate, '00000', 'and the waiter has the lock when it commits');
	},
	passes_without_lending => 'it is forced entry');

# The same of a transaction that has written nothing
$gate->piece(
	'an advisory lock in statement scope',
	{ max_active_backends => 1, lend_after => -1 },
	sub {
		my ($owner, $waiter) =
		  map { $gate->session(session => { 'admission_gate.scope' => 'statement' }) } 1 .. 2;
		$owner->query('BEGIN');
		$owner->query('SELECT pg_advisory_xact_lock(1)');
		$waiter->start('SELECT pg_advisory_xact_lock(1)');
		$gate->await_wait_event_type($waiter, 'Lock');
		works($owner, 'the next statement of the owner of an advisory lock is forced in');
		$owner->query('COMMIT');
		is($waiter->sqlstate, '00000', 'and the waiter has the lock when it commits');
	},
	passes_without_lending => 'it is forced entry');

# DDL that needs no slot looks alone, but more statements follow in its pipeline.
$gate->piece(
	'pipelined DDL without a slot',
	{ max_active_backends => 1, lend_after => -1 },
	sub {
		my $worker = $gate->worker;
		my $ddl = $gate->session(session => { 'admission_gate.gate_utility' => 'off' });
		foreach ('ALTER TABLE t ALTER v SET NOT NULL', 'SELECT count(*) FROM t WHERE id = 1')
		{
			$ddl->parse('', $_)->bind('', '')->execute('');
		}
		$ddl->sync;
		$gate->ok_passes($ddl, 'after DDL without a slot, the rest of the pipeline is forced in');
		$ddl->start('SELECT count(*) FROM t WHERE id = 1');
		$gate->ok_waits($ddl, 'the next transaction waits');
		$gate->stop_worker($worker);
		is($ddl->finish, '1', 'for its turn');
	},
	passes_without_lending => 'it is forced entry');

# Forced entry, too: the transaction began while there was no limit.
$gate->piece(
	'a row lock from before the limit',
	{ max_active_backends => 0, lend_after => 60_000 },
	sub {
		my ($owner, $waiter) = map { $gate->session } 1 .. 2;
		$owner->query('BEGIN; UPDATE t SET v = 1 WHERE id = 1');
		$gate->set(max_active_backends => 1);
		$waiter->start('UPDATE t SET v = 2 WHERE id = 1');
		$gate->await_wait_event_type($waiter, 'Lock');
		works($owner, 'a transaction from before the limit that has written is forced in');
		$owner->query('COMMIT');
		is($waiter->sqlstate, '00000', 'and the waiter has the lock when it commits');
	},
	passes_without_lending => 'it is forced entry');

# And this one is in a subtransaction.
$gate->piece(
	'an advisory lock and a savepoint from before the limit',
	{ max_active_backends => 0, lend_after => 60_000 },
	sub {
		my ($owner, $waiter) = map { $gate->session } 1 .. 2;
		$owner->query('BEGIN; SAVEPOINT a; SELECT pg_advisory_xact_lock(1)');
		$gate->set(max_active_backends => 1);
		$waiter->start('SELECT pg_advisory_xact_lock(1)');
		$gate->await_wait_event_type($waiter, 'Lock');
		works($owner, 'a subtransaction from before the limit is forced in');
		$owner->query('COMMIT');
		is($waiter->sqlstate, '00000', 'and the waiter has the lock when it commits');
	},
	passes_without_lending => 'it is forced entry');

$gate->piece(
	'a lock from before the limit',
	{ max_active_backends => 0 },
	sub {
		my ($owner, $waiter) = map { $gate->session } 1 .. 2;
		$owner->query('BEGIN; LOCK t IN SHARE MODE');
		$gate->set(max_active_backends => 1);
		# In DO, so that the table is not locked before the gate
		$waiter->start('DO $$ BEGIN UPDATE t SET v = 2 WHERE id = 1; END $$');
		$gate->await_wait_event_type($waiter, 'Lock');
		works($owner, 'a transaction from before the limit that holds a lock is let in');
		$owner->query('COMMIT');
		is($waiter->sqlstate, '00000', 'and the waiter has the lock when it commits');
	},
	passes_without_lending => 'it is forced entry');

$gate->piece(
	'a buffer pin from before the limit',
	{ max_active_backends => 0 },
	sub {
		my ($owner, $vacuum) = map { $gate->session } 1 .. 2;
		$gate->value('UPDATE t SET v = v + 1 WHERE id < 10');
		$owner->query('BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c');
		$gate->set(max_active_backends => 1);
		$vacuum->start('VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t');
		# BufferPin, from PostgreSQL 19 on Buffer
		$gate->await_wait_event_type($vacuum, 'Buffer%');
		$owner->start('FETCH 1 FROM c');
		is($owner->sqlstate, '00000', 'a transaction from before the limit whose buffer pin is wanted is let in');
		$owner->query('COMMIT');
		is($vacuum->sqlstate, '00000', 'and vacuum ends');
	},
	passes_without_lending => 'it is forced entry');

$gate->piece(
	'a session-level advisory lock',
	{ max_active_backends => 1, lend_after => 60_000 },
	sub {
		my ($owner, $holder) = map { $gate->session } 1 .. 2;
		$owner->query('SELECT pg_advisory_lock(1)');
		$holder->query('BEGIN');
		$owner->start('SELECT pg_advisory_unlock(1)');
		$gate->await_queued($owner);
		$holder->start('SELECT pg_advisory_lock(1)');
		$gate->await_wait_event_type($holder, 'Lock');
		$gate->set(lend_after => 100);
		is($owner->finish, 't', 'the owner of an advisory lock is let in by the holder that wants it');
		is($holder->sqlstate, '00000', 'and the holder has it');
	},
	is_let_in => 1);

# A genuine deadlock is PostgreSQL's to find.
for my $limit (1, 2)
{
	$gate->piece(
		"a deadlock at limit $limit",
		{ max_active_backends => $limit, deadlock_timeout => 500 },
		sub {
			my ($one, $two) = map { $gate->session } 1 .. 2;
			$one->query('BEGIN; UPDATE t SET v = 1 WHERE id = 1');
			$two->query('BEGIN; UPDATE t SET v = 2 WHERE id = 2');
			$one->start('UPDATE t SET v = 1 WHERE id = 2');
			$gate->await_wait_event_type($one, 'Lock');
			$two->start('UPDATE t SET v = 2 WHERE id = 1');
			is(join(',', sort $one->sqlstate, $two->sqlstate),
				'00000,40P01', "a deadlock of two row locks is found, at limit $limit");
		},
		$limit > 1 ? (passes_without_lending => 'both have a slot') : ());
}

# ----------------------------------------------------------------
# Waits for clients
# ----------------------------------------------------------------

my %client = (max_active_backends => 1);

$gate->piece(
	'idle transactions',
	{ %client, max_active_backends => 3, lend_after => 500 },
	sub {
		my @idle = map { $gate->holder } 1 .. 3;
		my $next = $gate->session;
		$gate->value('SELECT pg_stat_admission_gate_reset()');
		works($next, 'a session works although all slots are held by idle transactions');
		my $waited = $gate->counter('max_wait_time');
		cmp_ok($waited, '>', 400, 'after lend_after');
		is($gate->counter('lends > 0 AND stalls = 0'), 't', 'by a slot that is lent');

		$gate->set(lend_after => 100);
		my @more = map { $gate->session } 1 .. 10;
		$_->start('BEGIN; SELECT 1') foreach @more;
		is(join(',', map { $_->finish } @more), join(',', (1) x 10), 'so do many, that become idle in turn');
		works($_, 'an idle transaction goes on') foreach @idle;
		$_->query('COMMIT') foreach (@idle, @more);
	});

$gate->piece(
	'a client that does not read',
	\%client,
	sub {
		my ($lazy, $next) = map { $gate->session } 1 .. 2;
		$lazy->start($huge_result);
		$gate->await_wait_event_type($lazy, 'Client');
		works($next, 'a session works beside one whose client does not read its result');
		is(scalar @{ $lazy->result->{rows} }, 30000, 'which has it all when the client reads on');
	});

$gate->piece(
	'a client that reads slowly',
	\%client,
	sub {
		my ($slow, $next) = map { $gate->session } 1 .. 2;
		$slow->start($huge_result);
		for (1 .. 10)
		{
			$slow->sip(1024);
			works($next, 'a session works beside one whose client reads slowly');
		}
		is(scalar @{ $slow->result->{rows} }, 30000, 'which has it all in the end');
	});

$gate->piece(
	'a client that reads slowly and goes',
	\%client,
	sub {
		my ($slow, $next) = map { $gate->session } 1 .. 2;
		$slow->start($huge_result);
		$slow->sip(1024);
		works($next, 'a session works beside one whose client reads slowly');
		$slow->hang_up;
		works($next, 'and when that client is gone');
	});

$gate->piece(
	'COPY FROM stalled by its client',
	\%client,
	sub {
		my ($copy, $next) = map { $gate->session } 1 .. 2;
		$copy->start('COPY t FROM STDIN')->read_until('G');
		$copy->copy_data("2001\t0\n");
		works($next, 'a session works beside a COPY FROM whose client is silent');
		$copy->copy_data("2002\t0\n");
		works($next, 'and between its data');
		$copy->copy_done;
		is($copy->result->{tags}[0], 'COPY 2', 'the COPY FROM ends well');
		$next->query('DELETE FROM t WHERE id > 1000');
	});

$gate->piece(
	'COPY TO stalled by its client',
	\%client,
	sub {
		my ($copy, $next) = map { $gate->session } 1 .. 2;
		$copy->start("COPY ($huge_result) TO STDOUT");
		$gate->await_wait_event_type($copy, 'Client');
		works($next, 'a session works beside a COPY TO whose client does not read');
		is(length $copy->result->{copy}, 30000 * 1001, 'the COPY TO ends well');
	});

$gate->piece(
	'a cursor',
	\%client,
	sub {
		my ($cursor, $next) = map { $gate->session } 1 .. 2;
		$cursor->query('BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; FETCH 2 FROM c');
		works($next, 'a session works beside one with an open cursor');
		is($cursor->query('FETCH FROM c'), '3', 'the cursor goes on');
		$cursor->query('COMMIT');
	});

$gate->piece(
	'a cursor WITH HOLD after its transaction',
	\%client,
	sub {
		my $cursor = $gate->session;
		$cursor->query('BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY id; COMMIT');
		my $holder = $gate->holder;
		is($cursor->query('FETCH FROM h'), '1', 'a holdable cursor is read beside an idle holder');
	});

$gate->piece(
	'a suspended portal',
	\%client,
	sub {
		my ($portal, $next) = map { $gate->session } 1 .. 2;
		$portal->query('BEGIN');
		$portal->parse('', 'SELECT id FROM t ORDER BY id')->bind('p', '')->execute('p', 2)->sync->result;
		works($next, 'a session works beside one with a suspended portal');
		is($portal->execute('p', 1)->sync->finish, '3', 'the portal goes on');
		$portal->query('COMMIT');
	});

$gate->piece(
	'a suspended portal without Sync',
	\%client,
	sub {
		my ($portal, $next) = map { $gate->session } 1 .. 2;
		$portal->parse('', 'SELECT id FROM t ORDER BY id')->bind('', '')->execute('', 2)->flush;
		$portal->read_until('s');
		works($next, 'a session works beside one that does not send its Sync');
		$portal->execute('', 1)->flush;
		$portal->read_until('s');
		works($next, 'nor after more rows');
		is($portal->sync->finish, "1\n2\n3", 'the rows are all there');
	});

$gate->piece(
	'a bound portal',
	\%client,
	sub {
		my ($portal, $next) = map { $gate->session } 1 .. 2;
		$portal->parse('', 'SELECT id FROM t WHERE id = 7')->bind('', '')->flush;
		$portal->read_until('2');
		works($next, 'a session works beside one that has not come beyond Bind');
		is($portal->execute('')->sync->finish, '7', 'it executes later');
	});

# Statements are no work by themselves, nor are rows that come one by one.  The last
# resort does not help: handoff_after.
for my $limit (1, 4)
{
	$gate->piece(
		"transactions that send statements, at limit $limit",
		{ max_active_backends => $limit, lend_after => 300, handoff_after => 60_000 },
		sub {
			my @chatty = map { $gate->holder } 1 .. $limit;
			my $next = $gate->session;
			$gate->value('SELECT pg_stat_admission_gate_reset()');
			$next->start('SELECT 2');
			my $entered = $gate->await_true(
				sub {
					$_->query('SELECT 1') foreach @chatty;
					usleep(20_000);
					return $next->done;
				},
				'a session beside them');
			ok($entered, "transactions that send a short statement every 30 ms lend, at limit $limit");
			is($gate->counter('lends > 0 AND stalls = 0'), 't', "their slots, at limit $limit");
			is($next->finish, '2', "which the next one has, at limit $limit");
			$_->query('COMMIT') foreach @chatty;
		});
}

$gate->piece(
	'COPY FROM fed row by row',
	{ %client, lend_after => 300, handoff_after => 60_000 },
	sub {
		my ($copy, $next) = map { $gate->session } 1 .. 2;
		$copy->query('CREATE TEMP TABLE copied (id int)');
		$copy->start('COPY copied FROM STDIN')->read_until('G');

		# So that it takes 2.5 % of a CPU
		my $rows = 0;
		my $pause = 400;
		my $start = time;
		my $cpu = cpu_time($copy);
		my $feed = sub {
			for (1 .. 100)
			{
				$copy->copy_data($rows++ . "\n");
				usleep($pause);
			}
			$pause *= cpu_time($copy) - $cpu > 0.025 * (time - $start) ? 1.1 : 1 / 1.1 if defined $cpu;
		};
		$feed->() until time - $start > 2;
		$gate->value('SELECT pg_stat_admission_gate_reset()');
		$next->start('SELECT 2');
		my $entered = $gate->await_true(sub { $feed->(); return $next->done; }, 'a session beside it');
		ok($entered, 'a COPY FROM that is fed row by row lends');
		is($gate->counter('lends > 0 AND stalls = 0'), 't', 'its slot');
		is($next->finish, '2', 'which the next one has');
		$copy->copy_done;
		is($copy->result->{tags}[0], "COPY $rows", 'the COPY FROM ends well');
	});

# What to do in a transaction block, with its SQLSTATE, to be idle in a
# subtransaction, in one that failed, and after one
my @to_savepoint = ([ 'SAVEPOINT a; UPDATE t SET v = 9 WHERE id = 9', '00000' ]);
my @to_failure = (@to_savepoint, [ 'SELECT 1/0', '22012' ]);
my @to_rollback = (@to_failure, [ 'ROLLBACK TO a; UPDATE t SET v = 10 WHERE id = 9', '00000' ]);

for my $case (
	[ 'in a subtransaction', @to_savepoint ],
	[ 'in a failed subtransaction', @to_failure ],
	[ 'after the rollback of a subtransaction', @to_rollback ])
{
	my ($where, @steps) = @$case;

	$gate->piece(
		"idle $where",
		\%client,
		sub {
			my ($session, $next) = map { $gate->session } 1 .. 2;
			$session->query('BEGIN');
			is($session->start($_->[0])->sqlstate, $_->[1], $_->[0]) foreach @steps;
			works($next, "a session works beside one idle $where");
			$session->query('ROLLBACK TO a; COMMIT');
		});
}

# ----------------------------------------------------------------
# SERIALIZABLE
# ----------------------------------------------------------------

$gate->piece(
	'a safe snapshot',
	{%client},
	sub {
		my ($writer, $reader) = map { $gate->session } 1 .. 2;
		$writer->query('BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE t SET v = 1 WHERE id = 1');
		$reader->query('BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE');
		$reader->start('SELECT count(*) FROM t');
		$gate->await_wait_event_type($reader, 'IPC');
		works($writer, 'a writer goes on beside a DEFERRABLE transaction that waits for it');
		$writer->query('COMMIT');
		is($reader->finish, '1000', 'which has its snapshot when the writer commits');
	});

# A lone SERIALIZABLE statement has its snapshot when it enters the queue.
$gate->piece(
	'a safe snapshot and a queued writer',
	{ %client, lend_after => 60_000 },
	sub {
		my ($writer, $reader) = map { $gate->session } 1 .. 2;
		$reader->query('BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE');
		$writer->query('SET default_transaction_isolation = serializable');
		$writer->start('UPDATE t SET v = 1 WHERE id = 1');
		$gate->await_queued($writer);
		$reader->start('SELECT count(*) FROM t');
		$gate->await_wait_event_type($reader, 'IPC');
		$gate->set(lend_after => 100);
		is($writer->sqlstate, '00000',
			'a writer in the queue is let in by the DEFERRABLE transaction that waits for it');
		is($reader->finish, '1000', 'which then has its snapshot');
	});

# ----------------------------------------------------------------
# Those who wait follow a reload.
# ----------------------------------------------------------------

$gate->piece(
	'a reload of lend_after',
	{ max_active_backends => 1, lend_after => 60_000 },
	sub {
		my $holder = $gate->holder;
		my $waiter = $gate->session;
		$waiter->start('SELECT 1');
		$gate->await_queued($waiter);
		$gate->set(lend_after => 100);
		is($waiter->finish, '1', 'a reload of lend_after frees a queue that stands still');
	});

# ----------------------------------------------------------------
# What does not lend
# ----------------------------------------------------------------

my %nothing_lent = (passes_without_lending => 'nothing is lent');

$gate->piece(
	'no lending',
	{ max_active_backends => 1, lend_after => -1, handoff_after => 60_000 },
	sub {
		my $holder = $gate->holder;
		my $next = $gate->session(session => { 'admission_gate.queue_timeout' => '300ms' });
		is($next->start('SELECT 1')->sqlstate, '53000', 'with lend_after = -1, an idle transaction keeps its slot');
	},
	%nothing_lent);
$gate->piece(
	'short waits',
	{ max_active_backends => 1, lend_after => 3_600_000 },
	sub {
		my $holder = $gate->holder;
		my $next = $gate->session(session => { 'admission_gate.queue_timeout' => '300ms' });
		is($next->start('SELECT 1')->sqlstate,
			'53000', 'a holder that has been idle for less than lend_after keeps its slot');
	},
	%nothing_lent);

$gate->piece(
	'short statements without a pause',
	{ max_active_backends => 1, lend_after => 300, handoff_after => 60_000 },
	sub {
		my $holder = $gate->holder;
		my $next = $gate->session(session => { 'admission_gate.queue_timeout' => '1s' });
		$gate->value('SELECT pg_stat_admission_gate_reset()');
		$next->start('SELECT 1');
		until ($next->done)
		{
			$holder->query('SELECT sum(i) FROM generate_series(1, 100000) i');
		}
		is($next->sqlstate, '53000', 'a transaction that sends work all the time keeps its slot');
		is($gate->counter('lends'), '0', 'and does not lend it');
	},
	%nothing_lent);

$gate->node->stop;

done_testing();
