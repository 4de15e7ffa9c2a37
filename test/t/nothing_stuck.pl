# Proves that nothing stays stuck behind the gate: not by a holder that waits for something
# unknown, nor when the gate is switched off; and that there is always a way in for the
# administrator.  With one slot, a holder that runs away and all connections taken by waiters,
# a superuser gets in, sees the holder, and sets the queue free; and the roles that need the
# bypass, by docs/operations.md, pass by the line it gives.  For stopped processes, see
# counters.pl, worker.pl and chaos.pl.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'nothing_stuck',
	max_active_backends => 1,
	max_connections => 30,
	superuser_reserved_connections => 2,
	init => { allows_streaming => 1 });
my $node = $gate->node;

$gate->value(
	'CREATE ROLE plain LOGIN',
	'CREATE ROLE analyst LOGIN',
	'ALTER ROLE analyst SET admission_gate.pool = batch',
	'CREATE ROLE dba LOGIN SUPERUSER');

sub plain   { return $gate->session(user => 'plain', @_); }
sub analyst { return $gate->session(user => 'analyst'); }
sub dba     { return $gate->session(user => 'dba'); }

# The last resort
#
# A full pool beside a queue that moves, and a full gate, on servers of their own: this takes
# a minute.  See the end.
my $pool_gate = GateTest->new(
	'stuck_pool',
	max_active_backends => 2,
	idle_after => -1,
	pools => 'batch: max_active = 1');
my @of_batch = (session => { 'admission_gate.pool' => 'batch' });
my $pool_holder = $pool_gate->holder(@of_batch);
my $pool_crowd = $pool_gate->crowd(4, 'SELECT pg_sleep(0.1);');
$pool_gate->await('SELECT queued > 0 FROM pg_stat_admission_gate WHERE pool = $$default$$', 'a queue that moves');
my $pool_waiter = $pool_gate->waiter('SELECT 1', @of_batch);

my $full_gate = GateTest->new('stuck', max_active_backends => 1, idle_after => -1);
my $full_holder = $full_gate->holder;
my $full_waiter = $full_gate->waiter('SELECT 1');

# Switching off
for my $off ([ max_active_backends => 0 ], [ mode => 'observe' ], [ mode => 'off' ])
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
$gate->set(idle_after => -1);
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

local @ENV{qw(PATH PGHOST PGPORT PGDATABASE PGDATA)} =
  ($node->config_data('--bindir') . ":$ENV{PATH}", $node->host, $node->port, 'postgres', $node->data_dir);

# Runs a program as people do, and returns what it says.
sub output_of
{
	my (@command) = @_;

	my $output = '';
	eval { IPC::Run::run(\@command, '<' => \undef, '>&' => \$output, IPC::Run::timeout($GateClient::patience)); 1 }
	  or $output .= $@;
	chomp $output;
	return $output;
}

# Locked out
my $holders = q{FROM pg_stat_admission_gate_backends WHERE gate_state = 'running' AND pid <> pg_backend_pid()};

# A holder that never ends by itself, and as many waiters as the
# server lets connect
sub fill_the_server
{
	my $holder = $gate->worker(user => 'plain');
	my @waiters;
	until ((my $session = $gate->session(user => 'plain', may_fail => 1))->closed)
	{
		push @waiters, $session->start('SELECT 1');
	}
	$gate->await_waiting(scalar @waiters);
	return ($holder, @waiters);
}

# The waiters are answered, though the holder may run on.
sub ok_free
{
	my ($what, @waiters) = @_;

	$gate->ok_all_done($what, @waiters);
	return is(join(',', map { $_->done ? $_->finish : 'waits' } @waiters), join(',', (1) x @waiters), $what);
}

# How a superuser, admitted by the reserve, gets everybody out: what the holder is told, if
# anything, and what to type
my $reload = 'SELECT pg_reload_conf()';
for (
	[ 'cancels the holder', '57014', "SELECT pg_cancel_backend(pid) $holders" ],
	[ 'terminates the holder', '57P01', "SELECT pg_terminate_backend(pid) $holders" ],
	[ 'switches the gate off', '', 'ALTER SYSTEM SET admission_gate.mode = off', $reload ],
	[ 'lets the limit only be observed', '', q{ALTER SYSTEM SET admission_gate.mode = 'observe'}, $reload ])
{
	my ($what, $sqlstate, @typed) = @$_;
	my ($holder, @waiters) = fill_the_server();

	my @look = ('SELECT waiting FROM pg_stat_admission_gate', "SELECT pid $holders");
	is( output_of('psql', '-XAtq', '-U', 'dba', map { ('-c', $_) } @look, @typed),
		join("\n", scalar @waiters, $holder->pid, 't'),
		"a superuser connects, sees the pool and its holder, and $what");
	ok_free('which lets everybody in', @waiters);
	$sqlstate
	  ? is($holder->sqlstate, $sqlstate, 'and the holder is told')
	  : ok(!$holder->done, 'while the holder goes on');
	$gate->end_sessions;
	$gate->set(max_active_backends => 1, mode => 'enforce');
	$gate->ok_quiet("after a superuser $what");
}

# Without a connection, as docs/faq.md has it
{
	my ($holder, @waiters) = fill_the_server();
	my ($commands) = slurp_file('docs/faq.md') =~ /^## I am locked out\n.*?\n\n((?:    [^\n]*\n)+)/ms;
	output_of('sh', '-euc', $commands);
	ok_free('the owner of the files gets everybody out without a connection', @waiters);
	ok(!$holder->done, 'while the holder goes on');
	$gate->end_sessions;
	$gate->set(mode => 'enforce');
}

# Roles that need the bypass
#
# Each waits when the gate is full, and passes by the line for it.
my %line =
  map { /^ALTER ROLE (\w+)/ ? ($1 => $_) : () } slurp_file('docs/operations.md') =~ /^\| .* \| `([^`]+)` \|$/mg;
cmp_ok(scalar keys %line, '>', 5, 'docs/operations.md has lines');
for my $role (sort keys %line)
{
	$gate->value("CREATE ROLE $role LOGIN")
	  if $gate->value("SELECT count(*) FROM pg_roles WHERE rolname = '$role'") eq '0';
	my $holder = $gate->holder(user => 'plain');

	# Superusers have the reserve, but only as many as it is large.
	my $is_superuser = $gate->value("SELECT rolsuper FROM pg_roles WHERE rolname = '$role'") eq 't';
	my @reserve = map { $gate->holder(user => $role) } 1 .. ($is_superuser ? 2 : 0);
	my $session = $gate->session(user => $role);
	$gate->ok_queues($session, 'SELECT 1', "without the bypass, $role waits when the gate is full");
	$session->stop;

	$gate->value($line{$role});
	$gate->ok_runs($gate->session(user => $role), 'SELECT 1', "$role passes by its line");
}

$gate->ok_quiet('after those that bypass the gate');

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
$node->stop;

# The last resort
is($full_waiter->finish, '1', 'behind a holder that counts as at work, the next one is let in');
is($full_gate->counter('stalls'), '1', 'it is counted');
cmp_ok($full_gate->counter('total_wait_time'), '>', 59_000, 'not before a minute');
$full_holder->query('COMMIT');
$full_gate->ok_quiet('after the last resort');
$full_gate->node->stop;

is($pool_waiter->finish, '1', 'beside a queue that moves, the next one of a full pool is let in');
is($pool_gate->counter('stalls', 'batch'), '1', 'it is counted in the pool');
cmp_ok($pool_gate->counter('total_wait_time', 'batch'), '>', 59_000, 'not before a minute');
$pool_holder->query('COMMIT');
$pool_gate->ok_stops($pool_crowd);
$pool_gate->node->stop;
done_testing();
