# Proves that pools keep their promises: a pool's limit is a part of the limit for all
# and holds for its sessions alone; free slots go to the highest priority first, but
# nobody starves; and pools come, go and change under those that wait in them.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'pools',
	max_active_backends => 4,
	max_connections => 150,
	idle_after => -1,
	pools => 'web: priority = 10; batch: max_active = 1');
$gate->value(
	'CREATE ROLE web LOGIN SUPERUSER',
	"ALTER ROLE web SET admission_gate.pool = 'web'",
	'CREATE ROLE batch LOGIN SUPERUSER',
	"ALTER ROLE batch SET admission_gate.pool = 'batch'");

sub web   { return $gate->session(user => 'web'); }
sub batch { return $gate->session(user => 'batch'); }

# Sets the pools and waits until the view shows them: each by its name and limit.
sub set_pools
{
	my ($pools, $shown) = @_;

	$gate->set(pools => $pools);
	$gate->await(
		"SELECT string_agg(pool || ' ' || max_active, ', ' ORDER BY pool) = '$shown' FROM pg_stat_admission_gate",
		"pools $shown");
	return;
}

# What each pool's sessions do: running, waiting
sub gauges_are
{
	my ($what, %expected) = @_;
	is($gate->counter("concat_ws(' ', running, waiting)", $_), $expected{$_}, "$what: pool $_")
	  foreach sort keys %expected;
	return;
}

# The session has a slot by now, or soon.
sub ok_enters
{
	my ($session, $what) = @_;
	return $gate->ok_comes(sub { $session->done }, $what) && $session->finish;
}

sub ok_pool { return is($gate->state($_[0], 'pool'), $_[1], $_[2]); }

# A pool's own limit
is( $gate->value('SELECT pool, max_active, priority FROM pg_stat_admission_gate ORDER BY 1'),
	"batch|1|0\ndefault|4|0\nweb|4|10",
	'each pool shows its limit, or that for all, and its priority');
{
	my ($one, $two, $other, $third) = (batch(), batch(), web(), $gate->session);

	$one->query('BEGIN');
	$gate->ok_queues($two, 'SELECT 1', 'a pool with its one slot in use lets nobody else in');
	ok_pool($two, 'batch', 'a waiter is shown in its pool');
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$_->query('BEGIN') foreach ($other, $third);
	is($gate->counter('ARRAY[admitted, queued, barged]'),
		'{1,0,0}', 'a session of another pool neither waits nor barges');
	is($gate->counter('admitted', 'web'), '1', 'each is counted in its own');
	gauges_are('meanwhile', batch => '1 1', web => '1 0', default => '1 0');
	$one->query('COMMIT');
	ok_enters($two, 'the one slot goes to the one that waits');
	$_->query('COMMIT') foreach ($other, $third);
	is($gate->counter('ARRAY[admitted, completed]', 'batch'), '{2,2}', 'and is counted there');
	is( $gate->value("SELECT pool, sum(waits) FROM pg_stat_admission_gate_histogram GROUP BY 1 HAVING sum(waits) > 0"),
		'batch|1', 'its wait is in the histogram of its pool');
}

# The limit for all
$gate->set(max_active_backends => 2);
{
	my ($one, $two, $three) = (web(), $gate->session, batch());

	$_->query('BEGIN') foreach ($one, $two);
	$gate->ok_queues($three, 'SELECT 1', 'all pools share the limit');
	gauges_are('meanwhile', batch => '0 1', web => '1 0', default => '1 0');
	$one->query('COMMIT');
	ok_enters($three, 'a slot that one pool gives back is free to another');
	$two->query('COMMIT');
}

# Priority
$gate->set(max_active_backends => 1);
set_pools('web: priority = 10; batch: priority = -1; late: priority = -1', 'batch 1, default 1, late 1, web 1');
{
	my ($holder, $batch, $default, $web) = ($gate->session, batch(), $gate->session, web());
	my $late = $gate->session(session => { 'admission_gate.pool' => 'late' });

	$holder->query('BEGIN');
	$gate->queue($_, 'BEGIN') foreach ($batch, $default, $web, $late);
	my $waiting = 4;
	for ([ $holder, $web ], [ $web, $default ], [ $default, $batch ], [ $batch, $late ])
	{
		my ($last, $next) = @$_;
		$last->query('COMMIT');
		ok_enters($next, 'the highest priority goes first, although it came later, then the next');
		is($gate->gauges, '1|' . --$waiting, 'and the others wait');
	}
	$late->query('COMMIT');
}

# A free slot that somebody was called for is not for lower priorities.
{
	my ($web, $batch, $other_web) = (web(), batch(), web());

	$gate->call_in_vain($web);
	$gate->ok_queues($batch, 'SELECT 2', 'a session of lower priority does not barge');
	is($other_web->query('SELECT 3'), '3', 'one of the same does');
	kill CONT => $web->pid;
	ok_enters($web, 'the one that was called comes next');
	ok_enters($batch, 'and then the other');
}

# Nobody starves: a second after it was passed over, a low priority goes first; but
# once, and then it has to be passed over again, however long that takes.
{
	my ($holder, @web) = ($gate->session, map { web() } 1 .. 2);
	my @batch = map { batch() } 1 .. 3;

	my $wait = sub { $gate->value('SELECT pg_sleep(1.2)') };
	my $runs = sub {
		my ($session, $what) = @_;
		$gate->ok_comes(sub { $gate->state($session) eq 'running' && $gate->gauges =~ /^1\|/ }, $what);
	};
	my $work = 'DO $$ BEGIN LOOP END LOOP; END $$';
	$holder->start($work);
	$runs->($holder, 'a session is at work');
	$gate->queue($_, $work) foreach (@batch, @web);
	$wait->();
	$holder->stop;
	$runs->($web[0], 'to have waited for longer than a second is no reason to go first');
	$wait->();
	$web[0]->stop;
	$runs->($batch[0], 'to have been passed over for that long is');
	$wait->();
	$batch[0]->stop;
	$runs->($web[1], 'but only for one; then the highest goes first again');
	is($gate->gauges, '1|2', 'while the others wait');
	$web[1]->stop;

	foreach my $session (@batch[ 1, 2 ])
	{
		$runs->($session, 'the low ones come when nobody else wants to');
		$session->stop;
	}
}

# Queues of their own
$gate->set(max_active_backends => 2);
set_pools('batch: max_active = 1, max_queue_length = 1', 'batch 1, default 2');
{
	my ($holder, $waiter, $one_more) = map { batch() } 1 .. 3;

	$holder->query('BEGIN');
	$gate->queue($waiter, 'SELECT 1');
	my $error = $one_more->start('SELECT 1')->result->{error};
	my $told = qr/^53400 The limit of pool "batch" is 1 .*\(1 in use, 1 waiting\).* or max_active of pool "batch"\.$/;
	like("@$error{qw(C D H)}", $told, "a pool's queue may be full; the error tells how it stands and what to set");
	$waiter->cancel;
	is($waiter->sqlstate, '57014', 'the one in the queue was not refused');
	set_pools('batch: max_active = 1, max_queue_length = 1, queue_timeout = 100ms', 'batch 1, default 2');
	is($waiter->start('SELECT 1')->sqlstate, '53000', "a pool may have a queue_timeout");
	$waiter->query("SET admission_gate.queue_timeout = '1h'");
	is($waiter->start('SELECT 1')->sqlstate, '53000', 'which nobody can exceed');
	is($gate->counter('ARRAY[timeouts, rejections]', 'batch'), '{2,1}', 'both are counted in the pool');
	$holder->query('COMMIT');

	# The limit for all may be what there is to wait for.
	my @others = map { $gate->holder } 1 .. 2;
	$waiter->query("SET admission_gate.queue_timeout = '10ms'");
	$error = $waiter->start('SELECT 1')->result->{error};
	like(
		$error->{D},
		qr/^The limit of the server is 2 at a time \(2 in use,/,
		'the error may tell of the limit for all');
	$_->query('COMMIT') foreach @others;
}

# Pools change
set_pools('batch: max_active = 1', 'batch 1, default 2');
{
	my ($one, $two, $three, $four) = map { batch() } 1 .. 4;

	$one->query('BEGIN');
	$gate->queue($_, 'BEGIN') foreach ($two, $three);
	set_pools('batch: max_active = 2', 'batch 2, default 2');
	$gate->ok_comes(sub { $two->done }, 'a waiter enters a pool that has grown');
	$two->finish;
	gauges_are('and no other does', batch => '2 1');

	set_pools('batch: max_active = 1', 'batch 1, default 2');
	$one->query('COMMIT');
	$gate->ok_queues($four, 'SELECT 4', 'a pool that has shrunk lets nobody in');
	gauges_are('and nobody was thrown out', batch => '1 2');
	$two->query('COMMIT');
	ok_enters($three, 'until there are fewer than its limit');
	$three->query('COMMIT');
	ok_enters($four, 'one at a time');
}
{
	my ($one, $two, $three) = map { batch() } 1 .. 3;
	$one->query('BEGIN');
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$gate->queue($_, 'SELECT 1') foreach ($two, $three);

	# The default pool has no slot free either.
	$gate->set(max_active_backends => 1);
	my $default = $gate->waiter('SELECT 1');
	set_pools('', 'batch 1, default 1');
	is( $gate->value(
			"SELECT pool, gate_state, count(*) FROM pg_stat_admission_gate_backends GROUP BY 1, 2 ORDER BY 1, 2"),
		"batch|running|1\nbatch|waiting|2\ndefault|waiting|1",
		'those that wait for a pool that is removed, or work there, go on');
	$one->query('COMMIT');
	ok_enters($_, 'and enter') foreach ($two, $three, $default);
	is($gate->value("SELECT string_agg(pool, ' ') FROM pg_stat_admission_gate"),
		'default', 'a removed pool is shown as long as somebody is at work in it');
	$one->query('SELECT 1');
	my $admitted = $gate->counter('admitted');
	set_pools('batch: max_active = 1', 'batch 1, default 1');
	$one->query('SELECT 1');
	is($gate->counter('admitted'), $admitted, 'its sessions use it again when it is there again');
}

# A pool that comes back counts those that were at work in it all the time.
{
	$gate->set(max_active_backends => 3);
	my ($one, $two) = map { batch() } 1 .. 2;
	$one->query('BEGIN');
	set_pools('other: max_active = 1', 'batch 1, default 3, other 1');
	set_pools('batch: max_active = 1', 'batch 1, default 3');
	$gate->ok_queues($two, 'SELECT 1', 'a pool that is removed and defined again is as full as before');
	$one->query('COMMIT');
	ok_enters($two, 'and gets its slot back');
	$gate->ok_one_slot('batch');
	set_pools("$_: max_active = 1", "default 3, $_ 1") foreach ('fresh', 'fresher');
	is($gate->counter('admitted', 'fresher'), '0', 'the totals of a new pool are its own');

	# This one has no places that are counted.
	set_pools('web', 'default 3, web 3');
	my $web = web();
	$web->query('BEGIN');
	set_pools('', 'default 3, web 3');
	set_pools(join('; ', map { "new$_" } 1 .. 8), join(', ', 'default 3', map("new$_ 3", 1 .. 8), 'web 3'));
	ok_pool($web, 'web', 'no new pool takes the place of one in which somebody is at work');
	$web->query('COMMIT');
	$gate->set(max_active_backends => 2);
}

# Which session belongs where
set_pools('Batch: max_active = 1; default: max_active = 1', 'batch 1, default 1');
{
	my ($one, $two) = map { $gate->session(session => { 'admission_gate.pool' => 'nowhere' }) } 1 .. 2;
	my $holder = $gate->holder;
	my $before = -s $gate->node->logfile;
	$gate->ok_queues($_, 'SELECT 1', 'a session of an unknown pool has the limit of the default pool')
	  foreach ($one, $two);
	$holder->query('COMMIT');
	$_->finish foreach ($one, $two);
	my $log = slurp_file($gate->node->logfile, $before);
	is(scalar(() = $log =~ /pool "nowhere" is not defined/g), 1, 'which the log says once');

	my $elsewhere = $gate->session(session => { 'admission_gate.pool' => 'elsewhere' });
	is_deeply(
		[ map { @{ $elsewhere->start('SELECT 1')->result->{notices} } } 1 .. 2 ],
		['admission_gate: pool "elsewhere" is not defined'],
		'and each session is told once');

	# It is told at BEGIN, and a cancel comes while its client does not read that.
	$elsewhere->query("SET admission_gate.pool = '" . 'x' x 1_000_000 . "'");
	$elsewhere->start('BEGIN');
	$gate->await_wait_event_type($elsewhere, 'Client');
	$elsewhere->cancel;
	is($elsewhere->result->{status}, 'T', 'a cancel meanwhile does not make BEGIN fail');
	$elsewhere->query('COMMIT');
	$one->query("SET admission_gate.pool = 'BATCH'");
	$one->query('BEGIN');
	ok_pool($one, 'batch', 'names are compared without regard to case');
	$one->query('COMMIT');

	$gate->value('CREATE DATABASE for_batch', "ALTER DATABASE for_batch SET admission_gate.pool = 'batch'");
	ok_pool($gate->holder(database => 'for_batch'), 'batch', 'a database may have a pool');
}

# Pools and the rest of the gate: who is at work, forced entry, observing, cancels
set_pools('batch: max_active = 1', 'batch 1, default 2');
$gate->set(max_active_backends => 4, idle_after => 100);
{
	my ($one, $two) = map { batch() } 1 .. 2;

	$one->query('BEGIN');
	my $queued = $gate->counter('queued', 'batch');
	$gate->await_samples(10);
	$two->start('BEGIN');
	ok_enters($two, 'a session that waits for its client lets the next one of its pool in');
	is($gate->counter("ARRAY[running, queued - $queued]", 'batch'), '{2,0}', 'at once, as it was seen idle');
	$_->query('COMMIT') foreach ($one, $two);
	$gate->set(idle_after => -1);

	$two->query($begins_with_bypass);
	$one->query('BEGIN');
	is($two->query('SELECT 2'), '2', 'a transaction that began with the bypass does not wait, be its pool full');
	is($gate->counter('forced', 'batch'), '1', 'it is counted as forced there');
	my $error = $gate->session(user => 'batch', session => { 'admission_gate.queue_timeout' => 10 })->start('SELECT 3')
	  ->result->{error};
	like($error->{D}, qr/ is 1 at a time \(2 in use, 0 waiting\)/, 'and others wait');
	$_->query('COMMIT') foreach ($one, $two);
}

# A row of the views that cannot be kept fails, and its session is stuck with the error, since
# its client does not read: that holds no lock for which others wait.
{
	my $reader = $gate->session;
	my $histogram = 'SELECT count(*) FROM pg_stat_get_admission_gate_histogram()';

	$gate->set(pools => join '; ', map { sprintf 'p%060d', $_ } 1 .. 31);
	$reader->query("SET work_mem = '64kB'", 'SET temp_file_limit = 0');
	$reader->start("DO \$\$ BEGIN EXECUTE '$histogram /*' || repeat('x', 1000000) || '*/'; END \$\$");
	$gate->await_wait_event_type($reader, 'Client');
	$gate->ok_runs($gate->session, 'SELECT pg_stat_admission_gate_reset()', 'the views build no row under a lock');
	is($reader->sqlstate, '53400', 'even one that fails');
}

set_pools('', 'default 4');
$gate->ok_one_slot;
$gate->finish;
