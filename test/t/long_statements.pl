# Proves that long statements give their slots up for others and queue again: that no more
# are at work than the limit says, and all get on; that they leave nothing behind, however
# they end where they pause; that they go on if others wait for what they hold; and which
# statements never pause.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;
use List::Util qw(max min sum);

GateTest::use_two_cpus();
my $gate = GateTest->new(
	'long_statements',
	max_active_backends => 4,
	long_after => 50,
	idle_after => -1,
	max_connections => 60,
	max_parallel_workers_per_gather => 0,
	min_parallel_table_scan_size => 0,
	parallel_setup_cost => 0,
	log_statement => 'none');

$gate->value(
	'CREATE TABLE numbers AS SELECT i FROM generate_series(1, 5000) i',
	'CREATE TABLE many AS SELECT i FROM generate_series(1, 200000) i',
	'CREATE INDEX ON many (i)',
	'CREATE TABLE sale AS SELECT id, 0 AS sold FROM generate_series(1, 1000) id',
	'ANALYZE');

# Reads rows for ever, and for long
my $endless = 'SELECT count(*) FROM numbers a, numbers b, numbers c';
my $long = 'SELECT count(*) FROM numbers a, numbers b';
my $rows = 5000 * 5000;

# Is long, and then sleeps with its slot: where it does, it cannot pause.
my $sleeps = 'SELECT pg_sleep(3600) FROM (SELECT count(*) FROM numbers a, numbers b) n';

# In pg_stat_activity
my $pauses = q{wait_event_type = 'Extension' AND wait_event IN ('AdmissionGatePause', 'Extension')};

# What these sessions have used of a CPU, in seconds; where the kernel does not tell, how
# much time has passed
sub used
{
	return sum map { -r "/proc/$_/stat" ? (split ' ', slurp_file("/proc/$_/stat") =~ s/.*\) //sr)[11] / 100 : time } @_;
}

sub await_used
{
	my ($seconds, @pids) = @_;
	my $before = used(@pids);
	return $gate->await(sub { used(@pids) >= $before + $seconds }, "$seconds s of CPU time");
}

sub begin { my ($sql, %param) = @_; my $session = $gate->session(%param); $session->start($sql); return $session; }

sub stop
{
	my @sessions = @_;
	$_->cancel foreach @sessions;
	foreach (@sessions) { $_->result; $_->quit }
	return;
}

sub ok_cancels
{
	my ($session, $what) = @_;
	$session->cancel;
	is($session->sqlstate, '57014', $what);
	return $session->quit;
}

# At limit 2, a session that sleeps has the slot of those that are long.
sub sleeper
{
	$gate->set(max_active_backends => 2);
	my $sleeper = begin($sleeps);
	$gate->await(sub { $gate->activity($sleeper, "wait_event = 'PgSleep'") eq 't' }, 'the one that sleeps');
	return $sleeper;
}

# Beside it, a session runs this, or what the function does with it, and pauses as soon as a
# short statement wants the other slot, and until that ends.  Returns all three.
sub paused
{
	my ($what, $start, %param) = @_;
	my ($sleeper, $session) = (sleeper(), $gate->session(%param));
	ref $start ? $start->($session) : $session->start($start);
	$gate->await(sub { $gate->state($session) }, 'its slot');
	my $short = $gate->worker;
	$gate->ok_comes(sub { $gate->state($session) eq 'paused' }, "$what: pauses for a short statement");
	return ($sleeper, $short, $session);
}

sub ok_ends
{
	my ($what, @sessions) = @_;
	stop(@sessions);
	return $gate->ok_quiet($what);
}

# A limit is one

# Of the samples, the most that three in a row have seen: one that gives its slot up needs a CPU
# to go to sleep.
sub most
{
	return max map { min @_[ $_ .. $_ + 2 ] } 0 .. $#_ - 2;
}

{
	my @sessions = map { $gate->session } 1 .. 12;
	my $at_work =
		"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid IN ("
	  . join(',', map { $_->pid } @sessions)
	  . q{) AND NOT coalesce(wait_event_type = 'Extension', false)};
	my $passed = 0;
	my (@running, @active);
	my $other = $gate->session;
	$_->start($long) foreach @sessions;
	my $all_done = sub {
		push @running, $gate->counter('running');
		push @active, $gate->value($at_work);
		my $left = grep { !$_->done } @sessions;
		$passed++ if $left == 12 && $other->query('SELECT count(*) FROM sale') eq '1000';
		return $left == 0;
	};
	$gate->ok_comes($all_done, 'of twelve that are long, all end');
	is(join(',', map { $_->finish } @sessions), join(',', ($rows) x 12), 'with the right results');
	note scalar(@running) . " samples, $passed short statements";
	is(most(@running), 4, 'no more than four have a slot at a time');
	cmp_ok(most(@active), '<=', 4, 'and no more are at work');
	cmp_ok($passed, '>', 3, 'short statements pass meanwhile');
	is($gate->counter('pauses >= 8 AND total_pause_time > 1000'), 't', 'pauses are counted, and how long they took');
	$gate->ok_quiet('after twelve at limit 4');
}

{
	my $pauses = $gate->counter('pauses');
	my @sessions = map { begin($endless) } 1 .. 4;
	await_used(0.5, $_->pid) foreach @sessions;
	is($gate->counter("ARRAY[running, pauses - $pauses]"), '{4,0}', 'while nobody waits, no long statement pauses');
	my $short = $gate->session;
	is($short->query('SELECT sold FROM sale WHERE id = 1'), '0', 'for a short one, one of them does') foreach 1 .. 3;
	$gate->ok_comes('running = 4 AND paused = 0 FROM pg_stat_admission_gate', 'and then goes on');

	my $late = begin($endless);
	$gate->ok_comes("running = 4 AND paused = 1 AND pauses > $pauses + 5 FROM pg_stat_admission_gate",
		'if there is one more, they pause by turns');
	ok_ends('after five', @sessions, $late);
}

# While short ones wait, long ones have half of the CPUs here, which is less than a fourth
# of the slots.
{
	$gate->set(max_active_backends => 8);
	my @sessions = map { begin($endless) } 1 .. 6;
	await_used(0.2, $_->pid) foreach @sessions;
	my $works = 'DO $$ BEGIN LOOP END LOOP; END $$';
	my @short = map { begin($works) } 1 .. 8;
	my $settled = 'running = 8 AND paused = 5 AND waiting = 1 FROM pg_stat_admission_gate';
	$gate->ok_comes($settled, 'long statements have their share of the slots');

	# The least that any has had, of what they have had on average
	my @before = map { used($_->pid) } @sessions;
	my $part = sub {
		my @had = map { used($sessions[$_]->pid) - $before[$_] } 0 .. $#sessions;
		return min(@had) / max(sum(@had) / @had, 0.2);
	};
	my ($looks, $settled_at) = (0, 0);
	my $have_parts = sub {
		$looks++;
		$settled_at++ if $gate->value("SELECT $settled") eq 't';
		return $looks >= 20 && $part->() > 0.5;
	};
	$gate->ok_comes($have_parts, 'and each has its part of that');
	cmp_ok($settled_at, '>', $looks / 2, 'but no more');
	stop(@short);
	$gate->ok_comes('running = 6 AND paused = 0 FROM pg_stat_admission_gate', 'then all go on');
	stop(@sessions);

	@sessions = (begin($endless, session => { max_parallel_workers_per_gather => 2 }), begin($endless));
	await_used(0.2, $sessions[1]->pid);
	@short = map { begin($works) } 1 .. 8;
	$gate->ok_comes('running = 8 AND paused = 1 AND waiting = 1 FROM pg_stat_admission_gate',
		'the workers of a parallel query count for the share');
	ok_ends('after the share', @short, @sessions);
}

# The only slot is for all, by turns.
{
	$gate->set(max_active_backends => 1);
	my @sessions = map { begin($endless) } 1 .. 2;
	await_used(0.3, $_->pid) foreach @sessions;
  SKIP:
	{
		skip 'no /proc', 2 unless -r '/proc/self/stat';
		my @pids = map { $_->pid } @sessions;
		my ($pauses, $before, $start) = ($gate->counter('pauses'), used(@pids), time);
		await_used(2, @pids);
		my ($turns, $used) = ($gate->counter("pauses - $pauses"), used(@pids) - $before);
		cmp_ok($turns, '>=', $used / 0.3 - 2, 'a turn is 200 ms of CPU time');
		cmp_ok($turns, '<=', $used / 0.15 + time - $start + 2, 'and no less, unless it lasts a second');
	}
	is($gate->session->query('SELECT 1'), '1', 'at limit 1, a short statement passes long ones') foreach 1 .. 5;
	my $crowd = $gate->crowd(8, 'SELECT count(*) FROM sale;');
	await_used(0.3, $_->pid) foreach @sessions;
	$gate->stop_crowd($crowd);
	ok_ends('after limit 1, where these go on beside a crowd', @sessions);
}

# A late statement is not behind all that others have had, nor behind those that sleep.
{
	$gate->set(idle_after => 100, max_active_backends => 4);
	$gate->value(
		'CREATE FUNCTION works_and_sleeps(int) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_sleep(0.5); RETURN (SELECT count(*) FROM generate_series(1, 300000)); END $$');
	my @sleepers = map { begin('SELECT sum(works_and_sleeps(i)) FROM numbers') } 1 .. 2;
	my @sessions = map { begin($endless) } 1 .. 2;
	await_used(1, map { $_->pid } @sessions);
	my $crowd = $gate->crowd(8, 'SELECT count(*) FROM sale;');
	is($gate->session->query($long), $rows, 'a long statement beside others, and short ones, ends');
	$gate->stop_crowd($crowd);
	ok_ends('after a crowd', @sleepers, @sessions);
	$gate->set(idle_after => -1);
}

# The end of a pause

{
	my ($sleeper, $short, $session) = paused('a statement', $endless);
	$gate->ok_comes(sub { $gate->activity($session, $pauses) eq 't' }, 'pg_stat_activity shows that');
	cmp_ok($gate->state($session, 'wait_time'), '>', 0, 'and the view, for how long');
	stop($short);
	$gate->ok_comes(sub { $gate->state($session) eq 'running' }, 'when that ends, it goes on');
	await_used(0.1, $session->pid);
	ok_ends('after a pause', $sleeper, $session);
}

for my $end (
	[ 'cancelled' => sub { ok_cancels($_[0], 'it is') } ],
	[ 'terminated' => sub { $gate->value('SELECT pg_terminate_backend(' . $_[0]->pid . ')') } ],
	[ 'its client hangs up' => sub { $_[0]->hang_up } ])
{
	my ($what, $do) = @$end;
	for my $in_parallel (0, 2)
	{
		my ($sleeper, $short, $session) =
		  paused("to be ended: $what", $endless, session => { max_parallel_workers_per_gather => $in_parallel });
		my $pid = $session->pid;
		$do->($session);
		$gate->ok_comes("count(*) = 0 FROM pg_stat_activity WHERE $pid IN (pid, leader_pid)", "$what: it ends")
		  if $what ne 'cancelled';
		$gate->ok_comes('running = 2 AND paused = 0 FROM pg_stat_admission_gate', "$what: and leaves the queue");
		$gate->ok_adds_up($what);
		ok_ends("after the end of a pause: $what", $sleeper, $short);
	}
}

# What catches the error goes on without its slot.
$gate->value(
	"CREATE FUNCTION catches(text) RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN PERFORM * FROM ($endless) n;
	EXCEPTION WHEN query_canceled THEN EXECUTE 'SELECT ' || \$1; END \$\$");
for my $sql (
	q{DO $$ BEGIN PERFORM catches('pg_advisory_lock(1)'); END $$},
	q{SELECT catches('pg_advisory_lock(1)'), (SELECT count(*) FROM sale)})
{
	my ($sleeper, $short, $session) = paused('that catches an error', $sql);
	$gate->value('SELECT pg_advisory_lock(1)');
	# A cancel request may signal twice, and so cancel what follows as well.
	$gate->value('SELECT pg_cancel_backend(' . $session->pid . ')');
	$gate->await_wait_event_type($session, 'Lock');
	$gate->ok_comes('paused = 0 AND running = 3 FROM pg_stat_admission_gate', 'an error can be caught');
	$gate->ok_adds_up('with a caught error');
	$gate->value('SELECT pg_advisory_unlock(1)');
	$session->finish;
	ok_ends('after a caught error', $sleeper, $short);
}

# What others wait for

my %bypass = (session => { 'admission_gate.bypass' => 'on' });
for my $in_parallel (0, 2)
{
	my @param = (session => { max_parallel_workers_per_gather => $in_parallel });
	my ($sleeper, $short, $session) = paused('with a lock', $long, @param);
	my $waiter = begin('SELECT 1');
	my $alter = begin('ALTER TABLE numbers DROP COLUMN IF EXISTS none', %bypass);
	is($session->finish, $rows, 'one with a lock that others wait for goes on to its end');
	is($gate->state($waiter), 'waiting', 'though short ones wait');
	$sleeper->cancel;    # it has that lock as well
	is($alter->sqlstate, '00000', 'then others have the lock');
	ok_ends('after a lock', $short, $waiter);

	($sleeper, $short, $session) = paused('with a pin', $endless, @param);
	my $vacuum = begin('VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) numbers', %bypass);
	$gate->await_wait_event_type($vacuum, 'Buffer%');    # BufferPin, from 19 on Buffer
	$waiter = begin('SELECT 1');
	$gate->ok_comes(sub { $gate->state($session) eq 'running' }, 'while VACUUM waits for a pin, it goes on');
	await_used(0.3, split /\n/,
		$gate->value('SELECT pid FROM pg_stat_activity WHERE ' . $session->pid . ' IN (pid, leader_pid)'));
	is($gate->state($session), 'running', 'and does not pause again');
	ok_cancels($vacuum, 'VACUUM waits as without the gate');
	$gate->ok_comes(sub { $gate->state($session) eq 'paused' }, 'then it pauses again')
	  if $gate->state($waiter) eq 'waiting';
	ok_ends('after a pin', $sleeper, $short, $session, $waiter);
}

# What does not pause

sub ok_never_pauses
{
	my ($what, @sql) = @_;
	my ($sleeper, $session, $pauses) = (sleeper(), $gate->session, $gate->counter('pauses'));
	my $last = pop @sql;
	$session->query($_) foreach @sql;
	$session->start($last);
	$gate->await(sub { $gate->state($session) }, 'its slot');
	my $waiter = $gate->waiter('SELECT 1');
	await_used(0.4, $session->pid);
	is($gate->state($session), 'running', "does not pause: $what");
	is($gate->state($waiter) . $gate->counter("pauses - $pauses"), 'waiting0', 'short ones wait for it');
	return ok_ends("after one that does not pause: $what", $sleeper, $session, $waiter);
}

# A foreign table: it may have locked rows of another server.
my $far = $gate->foreign_table('sale', 'id int, sold int', q{options '-c admission_gate.bypass=on'});
$gate->value('CREATE TABLE copy (n bigint)');
ok_never_pauses($_, split m{ // })
  foreach (
	"BEGIN // UPDATE sale SET sold = 1 WHERE id = 1 // $endless",
	$far
	? ( "BEGIN // UPDATE $far SET sold = 1 WHERE id = 2 // $endless",
		"BEGIN // SELECT FROM $far WHERE id = 2 FOR UPDATE // $endless")
	: (),
	"BEGIN // LOCK TABLE copy IN SHARE MODE // $endless",
	"INSERT INTO copy $endless",
	"SELECT pg_current_xact_id(), ($endless)",
	"WITH w AS (INSERT INTO copy VALUES (1) RETURNING n) $endless",
	"SELECT * FROM sale WHERE ($endless) > 0 FOR UPDATE",
	# none of which is long
	'DO $$ BEGIN LOOP PERFORM count(*) FROM numbers WHERE i < 1000; END LOOP; END $$');
$gate->set(pools => 'apart:');
ok_never_pauses('one of another pool', 'SET admission_gate.pool = apart', $endless);
$gate->set(pools => '');

# One whose transaction began while its pool had a limit
{
	my $session = $gate->session;
	$gate->set(pools => 'default: max_active = 2');
	$session->query($_) foreach 'BEGIN', 'SELECT 1';
	$gate->set(pools => '');
	$session->query($_) foreach $long, 'COMMIT';
	$gate->set(pools => 'default: max_active = 1, queue_timeout = 10s');
	is($gate->session->query('SELECT 1'), '1', 'it has returned its place in the pool');
	$gate->set(pools => '');
}

for my $case (
	[ 'long_after = -1' => { long_after => -1 }, { long_after => 50 } ],
	[ 'without a limit' => { max_active_backends => -1 } ],
	[ 'with the gate off' => { max_active_backends => 0 } ],
	[ 'mode = observe' => { mode => 'observe' }, { mode => 'enforce' } ],
	[ 'with a limit for the pool' => { pools => 'default: max_active = 2' }, { pools => '' } ])
{
	my ($what, $settings, $back) = @$case;
	my ($sleeper, $short, $session) = paused("until $what", $endless);
	$gate->set(%$settings);
	$gate->ok_comes("count(*) = 0 FROM pg_stat_admission_gate_backends WHERE gate_state = 'paused'",
		"$what: it goes on");
	my $pauses = $gate->counter('pauses');
	await_used(0.2, $session->pid);
	is($gate->counter('pauses'), $pauses, "$what: none pauses");
	$gate->set(max_active_backends => 2, %{ $back // {} });
	ok_ends("after $what", $sleeper, $short, $session);
}

# Ways to run a statement

$gate->value(
	"CREATE PROCEDURE p() LANGUAGE plpgsql AS 'BEGIN PERFORM * FROM ($endless) e; END'",
	'CREATE FUNCTION one() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM sale WHERE id = 1); END $$',
	"CREATE FUNCTION slow(i int, times int) RETURNS int LANGUAGE sql AS 'SELECT length(repeat(md5(i::text), times))'",
	'CREATE FUNCTION one_row() RETURNS SETOF int ROWS 100000 LANGUAGE plpgsql AS $$ BEGIN RETURN NEXT 0; END $$',
	'CREATE FUNCTION fails(i int) RETURNS int LANGUAGE plpgsql AS $$
	BEGIN RETURN i / 0; EXCEPTION WHEN division_by_zero THEN RETURN 0; END $$');
# The planner takes one_row() for so many that it hashes the other table.
my %plans = (
	'Bitmap Heap Scan' => 'SELECT count(*) FROM many WHERE i > 0 AND slow(i, 1000) > 0',
	'HashAggregate' =>
	  'SELECT count(*) FROM (SELECT i + 0 FROM numbers GROUP BY i + 0 HAVING slow(max(i), 200000) > 0) g',
	'Hash Join' => 'SELECT count(*) FROM one_row() s JOIN numbers n ON s = n.i / 6000 WHERE slow(s + n.i, 200000) > 0',
	'ProjectSet' => 'SELECT count(slow(i, 1000)) FROM (SELECT generate_series(1, 100000000) i) g');
my @off = map { "SET $_ = off" }
  qw(jit enable_seqscan enable_indexscan enable_indexonlyscan enable_sort enable_nestloop enable_mergejoin);

my $parallel = 'SET max_parallel_workers_per_gather = 2';
for my $way (
	[ 'extended protocol', sub { $_[0]->start_extended($endless) } ],
	[ 'prepared statement', sub { $_[0]->prepare('p', $endless); $_[0]->start_prepared('p') } ],
	[ 'cursor', sub { $_[0]->query('BEGIN', "DECLARE c CURSOR FOR $endless"); $_[0]->start('FETCH c') } ],
	[ 'procedure', sub { $_[0]->start('CALL p()') } ],
	[ 'statement that calls functions', sub { $_[0]->start('SELECT sum(one()) FROM numbers a, numbers b') } ],
	[ 'statement that catches errors', sub { $_[0]->start('SELECT sum(fails(a.i)) FROM numbers a, numbers b') } ],
	[ 'COPY', sub { $_[0]->start("COPY ($endless) TO STDOUT") } ],
	[ 'parallel query', sub { $_[0]->query($parallel); $_[0]->start($endless) } ],
	[
		'parallel query whose leader does not take part',
		sub { $_[0]->query($parallel, 'SET parallel_leader_participation = off'); $_[0]->start($endless) }
	],
	map { [ "plan with $_", $_ ] } sort keys %plans)
{
	my ($name, $start) = @$way;
	my $plan = sub {
		like($_[0]->query(@off, "EXPLAIN $plans{$start}"), qr/$start/, $name);
		$_[0]->start($plans{$start});
	};
	my ($sleeper, $short, $session) = paused($name, ref $start ? $start : $plan);
	my $pid = $session->pid;
	my @workers = split /\n/, $gate->value("SELECT pid FROM pg_stat_activity WHERE leader_pid = $pid");
	is(scalar @workers, 2, "$name: has workers") if $name =~ /^parallel/;
	$gate->ok_comes("count(*) = 0 FROM pg_stat_activity WHERE leader_pid = $pid AND NOT coalesce($pauses, false)",
		"$name: its workers pause as well");
	my $before = used($pid, @workers);
	await_used(0.2, $short->pid);
	cmp_ok(used($pid, @workers), '<', $before + 0.1, "$name: it uses nothing in its pause") if -r '/proc/self/stat';
	stop($short);
	await_used(0.2, $pid, @workers);
	ok_cancels($session, "$name: then goes on, and can be cancelled");
	ok_ends("after $name", $sleeper);
}

{
	# What is fetched piece by piece is one query.
	my $cursor = $gate->session;
	my $sleeper = sleeper();
	$cursor->query('BEGIN', 'DECLARE c CURSOR FOR SELECT a.i FROM numbers a, numbers b WHERE a.i + b.i > 0');
	my $waiter = begin('SELECT 1');
	my $pauses = $gate->counter('pauses');
	my $is_long = sub {
		$cursor->query('MOVE 50000 FROM c', 'SELECT sold FROM sale WHERE id = 1');
		$gate->counter("pauses > $pauses") eq 't';
	};
	$gate->ok_comes($is_long, 'a cursor is long by all that was fetched, whatever runs in between');
	is($waiter->finish, '1', 'short ones pass');
	ok_ends('after a cursor', $sleeper, $cursor);
}

# What all processes of a parallel query have used counts.
SKIP:
{
	skip 'no /proc', 5 unless -r '/proc/self/stat';
	$gate->value(
		'CREATE TABLE for_all (i int) WITH (parallel_workers = 4)',
		'INSERT INTO for_all SELECT i FROM numbers',
		'ANALYZE for_all');
	my ($sleeper, $pauses) = (sleeper(), $gate->counter('pauses'));
	$gate->set(long_after => 2000, max_parallel_workers_per_gather => 4);
	my $session = begin('SET parallel_leader_participation = off; SELECT count(*) FROM for_all, numbers b, numbers c');
	$gate->await(sub { $gate->state($session) }, 'its slot');
	my $waiter = begin('SELECT 1');
	$gate->ok_comes(sub { $gate->counter('pauses') > $pauses }, 'a parallel query with four workers pauses');
	my @used = map { used($_) }
	  split /\n/, $gate->value('SELECT pid FROM pg_stat_activity WHERE leader_pid = ' . $session->pid);
	is(scalar(grep { $_ < 1.5 } @used), 4, 'by what its processes have used together') or diag "@used";
	ok_ends('after many workers', $sleeper, $waiter, $session);
	$gate->set(long_after => 50, max_parallel_workers_per_gather => 0);
}

# Without the worker of the gate

for my $in_parallel (0, 2)
{
	my @param = (session => { max_parallel_workers_per_gather => $in_parallel });
	my ($sleeper, $short, $session) = paused('the worker is there', $endless, @param);
	my $worker = 'FROM pg_stat_admission_gate_worker';
	my $ended = $gate->value("SELECT pid $worker");
	$gate->value("SELECT pg_terminate_backend($ended)");
	$gate->await("SELECT pid <> $ended AND samples > 0 $worker");
	stop($short);
	$short = $gate->worker;
	$gate->ok_comes(sub { $gate->state($session) eq 'paused' }, 'with another worker, it pauses as well');
	$gate->stop_gate_worker;
	$gate->ok_comes(sub { $gate->state($session) eq 'running' }, 'while it is stopped, a paused statement goes on');
	$gate->continue_gate_worker;
	ok_ends('after the worker was stopped', $sleeper, $short, $session);
}

$gate->finish;
