# Proves that nothing stays stuck behind the gate: not by a holder that waits for something
# unknown, nor by a stopped process, nor when the gate is switched off; and that
# there is always a way in for the administrator.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new('nothing_stuck', max_active_backends => 1, superuser_reserved_connections => 2);

$gate->value(
	'CREATE ROLE plain LOGIN',
	'CREATE ROLE analyst LOGIN',
	'ALTER ROLE analyst SET admission_gate.pool = batch',
	'CREATE ROLE dba LOGIN SUPERUSER');

sub plain   { return $gate->session(user => 'plain', @_); }
sub analyst { return $gate->session(user => 'analyst'); }
sub dba     { return $gate->session(user => 'dba'); }

# For how many seconds has the session waited when its statement is answered?
sub seconds_until_answered
{
	my ($session, $sql) = @_;

	my $start = time;
	$session->query($sql);
	return time - $start;
}

# The last resort
#
# A full pool beside a queue that moves, on a server of its own: this takes a minute.
# See the end.
my $pool_gate = GateTest->new(
	'stuck_pool',
	max_active_backends => 2,
	lend_after => -1,
	pools => 'batch: max_active = 1');
my @of_batch = (session => { 'admission_gate.pool' => 'batch' });
my $pool_holder = $pool_gate->holder(@of_batch);
my $pool_crowd = $pool_gate->crowd(4, 'SELECT pg_sleep(0.1);');
$pool_gate->await('SELECT queued > 0 FROM pg_stat_admission_gate WHERE pool = $$default$$', 'a queue that moves');
my $pool_waiter = $pool_gate->waiter('SELECT 1', @of_batch);

$gate->set(lend_after => 60_000);
{
	my $holder = $gate->holder(user => 'plain');
	my @others = map { plain() } 1 .. 3;
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$gate->queue($_, 'BEGIN') foreach @others[ 0, 1 ];
	$gate->set(lend_after => -1);
	is(join(',', map { $_->sqlstate } @others[ 0, 1 ]),
		'00000,00000', 'behind an idle holder that does not lend, the next two are let in');
	is($gate->counter('stalls'), '2', 'they are counted');
	is($gate->gauges, '3|0|0', 'both are above the limit');
	my ($first, $second) = map { $gate->state($_, "extract('epoch' FROM state_change)") } @others[ 0, 1 ];
	cmp_ok($second - $first, '>=', 2, 'the second one is let in after two seconds more');

	# An entry in the ordinary way makes it begin again.
	$gate->queue($others[2], 'BEGIN');
	$_->query('COMMIT') foreach ($holder, @others[ 0, 1 ]);
	is($others[2]->sqlstate, '00000', 'a slot given back goes to the next');
	my $waited = seconds_until_answered($holder, 'SELECT 1');
	cmp_ok($waited, '>', 0.9, 'then the time is a second');
	cmp_ok($waited, '<', 3.9, 'again, not four');

	# So does a time without waiters.
	cmp_ok(seconds_until_answered($holder, 'SELECT 2'), '>', 1.9, 'for the next one, it is two');
	usleep(4_500_000);
	cmp_ok(seconds_until_answered($holder, 'SELECT 3'), '<', 3.9, 'much later, it is not four');
	$others[2]->query('COMMIT');
}
$gate->ok_quiet('after the last resort');

# Forced entries beside one that stays: no slot is ever free
{
	$gate->value(q{ALTER ROLE plain SET admission_gate.scope = 'statement'});
	my @forced = map { plain() } 1 .. 2;
	$gate->value('ALTER ROLE plain RESET ALL');
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$_->query('BEGIN; SELECT 1') foreach @forced;
	my $waiter = plain();
	$forced[0]->start('SELECT pg_sleep(600)');
	$gate->await_wait_event_type($forced[0], 'Timeout');
	$waiter->start('SELECT 1');
	$gate->ok_comes(
		sub {
			$forced[1]->query('SELECT pg_sleep(0.1)');
			return $waiter->done;
		},
		'beside forced entries without end, a waiter is let in');
	is($gate->counter('stalls > 0'), 't', 'by the last resort');
	$waiter->result;
	$forced[0]->stop;
	$_->query('COMMIT') foreach @forced;
}
$gate->ok_quiet('after overlapping forced entries');

# Behind a holder that works all the time, too; and lend_after may delay it by right.
$gate->set(lend_after => 1500);
{
	my $worker = $gate->worker(user => 'plain');
	my $waiter = plain();
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	cmp_ok(seconds_until_answered($waiter, 'SELECT 1'), '>', 2.4, 'the next one is let in a second after lend_after');
	is($gate->counter('ARRAY[lends, stalls]'), '{0,1}', 'beside a holder that is at work');
	$worker->stop;
}
$gate->ok_quiet('after a holder at work');

# A stopped waiter
{
	my $worker = $gate->worker(user => 'plain');
	my ($holder, $next) = map { plain() } 1 .. 2;
	my $stopped = $gate->waiter('SELECT 1', user => 'plain');
	$gate->stop_waiter($stopped);
	$worker->stop;
	is($holder->start('BEGIN')->sqlstate, '00000', 'while the only waiter is stopped, another one takes the free slot');
	is($next->start('SELECT 1')->sqlstate, '00000', 'and when that is idle, a third one');
	kill CONT => $stopped->pid;
	is($stopped->finish, '1', 'the stopped one goes on when it can');
	$holder->query('COMMIT');
}
$gate->ok_quiet('after a stopped waiter');

# Switching off
for my $off ([ max_active_backends => 0 ], [ mode => 'observe' ])
{
	my ($name, $value) = @$off;

	$gate->set(max_active_backends => 4, pools => 'batch: max_active = 1; rest: max_active = 1');
	my $worker = $gate->worker(user => 'analyst');
	my @waiters = map { $gate->waiter('SELECT 1', user => 'analyst') } 1 .. 3;
	$gate->set($name => $value);
	is(join(',', map { $_->finish } @waiters), '1,1,1', "$name = $value frees the waiters of a full pool");
	$worker->stop;
	$gate->set(mode => 'enforce', max_active_backends => 4, pools => '');
	$gate->ok_quiet("after $name = $value");
}

# A backend that has not reread its configuration: it does so between two messages.
$gate->set(max_active_backends => 4, pools => 'batch: max_active = 1');
{
	my $locker = $gate->session(session => { 'admission_gate.bypass' => 'on' });
	$locker->query('BEGIN; SELECT pg_advisory_xact_lock(1)');
	my $behind = analyst();
	$behind->start('BEGIN; SELECT pg_advisory_xact_lock(1); COMMIT; SELECT 2');
	$gate->await_wait_event_type($behind, 'Lock');
	my $worker = $gate->worker(user => 'analyst');
	$gate->set(max_active_backends => 0);
	$locker->query('COMMIT');
	$gate->ok_passes($behind, 'a backend that does not know yet that the gate is off does not queue');
	$worker->stop;
}
$gate->set(max_active_backends => 1, pools => '');
$gate->ok_quiet('after switching off');

# The reserve
$gate->set(lend_after => 60_000);
{
	my $worker = $gate->worker(user => 'plain');
	my @dba = map { dba() } 1 .. 3;
	my $plain = plain();
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$gate->queue($plain, 'BEGIN');
	$gate->ok_runs($_, 'BEGIN', 'as many superusers as superuser_reserved_connections enter a full gate')
	  foreach @dba[ 0, 1 ];
	is($gate->counter('forced'), '2', 'above the limit');
	$gate->ok_queues($dba[2], 'SELECT 1', 'one more waits like everyone else');
	$dba[0]->query('COMMIT');
	$gate->ok_runs($dba[0], 'BEGIN', 'a place that was given back is free again');
	$dba[1]->hang_up;
	$gate->await(sub { $gate->activity($dba[1], 'count(*)') eq '0' }, 'an end');
	$gate->ok_runs(dba(), 'SELECT 1', 'so is that of a session that ended');
	$dba[0]->query('COMMIT');
	$dba[2]->stop;
	ok(!$plain->done, 'an ordinary user waits on');
	$worker->stop;
	is($plain->sqlstate, '00000', 'for the slot');
	$plain->query('COMMIT');
}
$gate->ok_quiet('after the reserve');

# From PostgreSQL 16 on, a role has a reserve, too.
if ($gate->value('SHOW server_version_num') >= 160000)
{
	$gate->configure(reserved_connections => 1, superuser_reserved_connections => 1);
	undef $gate->{observer};
	$gate->restart('fast');
	$gate->value('CREATE ROLE operator LOGIN IN ROLE pg_use_reserved_connections');
	my $worker = $gate->worker(user => 'plain');
	my ($one, $two) = map { $gate->session(user => 'operator') } 1 .. 2;
	$gate->ok_runs($one, 'BEGIN', 'as many members of pg_use_reserved_connections as reserved_connections enter');
	$gate->ok_queues($two, 'SELECT 1', 'one more waits');
	$gate->ok_runs(dba(), 'SELECT 1', 'a superuser still enters');
	$worker->stop;
	$two->result;
	$one->query('COMMIT');
	$gate->ok_quiet('after the reserve of a role');
}
$gate->node->stop;

# The last resort in a pool
is($pool_waiter->finish, '1', 'beside a queue that moves, the next one of a full pool is let in');
is($pool_gate->counter('stalls', 'batch'), '1', 'it is counted in the pool');
cmp_ok($pool_gate->counter('total_wait_time', 'batch'), '>', 59_000, 'not before a minute');
$pool_holder->query('COMMIT');
$pool_gate->ok_stops($pool_crowd);
$pool_gate->node->stop;
done_testing();
