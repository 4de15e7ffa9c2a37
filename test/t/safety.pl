# Proves that a full gate locks out no administrator: with one slot, a holder that runs away
# and all connections taken by waiters, a superuser gets in, sees the holder, and sets the
# queue free; and the roles that need the bypass, by docs/operations.md, pass by the line it
# gives.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'safety',
	max_active_backends => 1,
	idle_after => -1,
	max_connections => 30,
	superuser_reserved_connections => 3,
	init => { allows_streaming => 1 });
my $node = $gate->node;

local %ENV = (
	%ENV,
	PATH => $node->config_data('--bindir') . ":$ENV{PATH}",
	PGHOST => $node->host,
	PGPORT => $node->port,
	PGDATABASE => 'postgres',
	PGDATA => $node->data_dir);

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
$gate->value('CREATE ROLE web LOGIN', 'CREATE ROLE dba LOGIN SUPERUSER');

my $holders = q{FROM pg_stat_admission_gate_backends WHERE gate_state = 'running' AND pid <> pg_backend_pid()};

# A holder that never ends by itself, and as many waiters as the
# server lets connect
sub fill_the_server
{
	my $holder = $gate->worker(user => 'web');
	my @waiters;
	until ((my $session = $gate->session(user => 'web', may_fail => 1))->closed)
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
	$gate->value("CREATE ROLE $role LOGIN " . ($role eq 'backup' ? 'IN ROLE pg_read_all_data' : ''))
	  if $gate->value("SELECT count(*) FROM pg_roles WHERE rolname = '$role'") eq '0';
	my $holder = $gate->holder(user => 'web');

	# Superusers have the reserve, but only as many as it is large.
	my $is_superuser = $gate->value("SELECT rolsuper FROM pg_roles WHERE rolname = '$role'") eq 't';
	my @reserve = map { $gate->holder(user => $role) } 1 .. ($is_superuser ? 3 : 0);
	my $session = $gate->session(user => $role);
	$gate->ok_queues($session, 'SELECT 1', "without the bypass, $role waits when the gate is full");
	$session->stop;

	$gate->value($line{$role});
	$gate->ok_runs($gate->session(user => $role), 'SELECT 1', "$role passes by its line");
}

# Real programs
{
	my $holder = $gate->holder(user => 'web');
	like(output_of('pg_isready'), qr/accepting connections/, 'pg_isready passes a full gate');
	like(output_of('pg_dump', '-U', 'backup'), qr/PostgreSQL database dump complete/, 'pg_dump passes by its line');
}
$gate->ok_quiet('after those that bypass the gate');

$gate->finish;
