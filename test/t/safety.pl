# Proves that a full gate locks out nobody who must not be: with one slot, a holder
# that runs away and all connections taken by waiters, a superuser gets in, sees who
# it is, and sets the queue free; those who docs/operations.md says need the bypass pass
# by the line it gives; and nobody gets past the gate, or changes it, without a grant.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";

my $gate = GateTest->new(
	'safety',
	max_active_backends => 1,
	handoff_after => 0,
	lend_after => 60_000,
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
	my $ended =
	  eval { IPC::Run::run(\@command, '<' => \undef, '>&' => \$output, IPC::Run::timeout($GateClient::patience)); 1 };
	$output .= $@ if !$ended;
	chomp $output;
	return $output;
}

# ----------------------------------------------------------------
# Locked out
# ----------------------------------------------------------------

$gate->value($_)
  foreach (
	'CREATE ROLE web LOGIN',
	'CREATE ROLE dba LOGIN SUPERUSER',
	'CREATE ROLE passing_dba LOGIN SUPERUSER',
	'ALTER ROLE passing_dba SET admission_gate.bypass = on');

# How a superuser gets in: by the reserve, or by the bypass, in the environment or typed
my %way_in = (
	'by the reserve' => { env => { PGUSER => 'dba' } },
	'by PGOPTIONS' => { env => { PGUSER => 'dba', PGOPTIONS => '-c admission_gate.bypass=on' } },
	'by ALTER ROLE' => { env => { PGUSER => 'passing_dba' } },
	'by SET' => { env => { PGUSER => 'dba' }, type => ['SET admission_gate.bypass = on'] });

# What he types then, and what the holder is told, if anything
my %way_out = (
	'cancels the holder' => {
		type => [
			"SELECT pg_cancel_backend(pid) FROM pg_stat_admission_gate_backends WHERE gate_state = 'running' AND pid <> pg_backend_pid()"
		],
		sqlstate => '57014'
	},
	'terminates the holder' => {
		type => [
			"SELECT pg_terminate_backend(pid) FROM pg_stat_admission_gate_backends WHERE gate_state = 'running' AND pid <> pg_backend_pid()"
		],
		sqlstate => '57P01'
	},
	'lifts the limit' => {
		type => [ 'ALTER SYSTEM SET admission_gate.max_active_backends = 0', 'SELECT pg_reload_conf()' ]
	},
	'lets the limit only be observed' => {
		type => [ q{ALTER SYSTEM SET admission_gate.mode = 'observe'}, 'SELECT pg_reload_conf()' ]
	});

# What he types as one of the way in says
sub psql
{
	my ($way_in, @statements) = @_;

	local %ENV = (%ENV, %{ $way_in->{env} });
	return output_of('psql', '-XAtq', map { ('-c', $_) } @{ $way_in->{type} // [] }, @statements);
}

# A holder that never ends by itself nor lends its slot, and as many waiters as the
# server lets connect
sub fill_the_server
{
	my ($holder, @waiters);
	while (1)
	{
		my $session = $gate->session(user => 'web', may_fail => 1);
		last if $session->closed;
		if ($holder)
		{
			$session->start('SELECT 1');
			push @waiters, $session;
			next;
		}
		$holder = $session;
		$holder->start('DO $$ BEGIN LOOP END LOOP; END $$');
		$gate->await(q{SELECT running = 1 FROM pg_stat_admission_gate}, 'a holder');
	}
	$gate->await_waiting(scalar @waiters);
	return ($holder, @waiters);
}

# The waiters are answered, though the holder may run on.
sub ok_free
{
	my ($what, @waiters) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$gate->await_true(
		sub {
			!grep { !$_->done } @waiters;
		},
		'the queue to empty');
	is(join(',', map { $_->done ? $_->finish : 'waits' } @waiters), join(',', (1) x @waiters), $what)
	  or diag $gate->report;
	return;
}

sub get_in_and_out
{
	my ($how_in, $how_out) = @_;
	my ($in, $out) = ($way_in{$how_in}, $way_out{$how_out});
	my ($holder, @waiters) = fill_the_server();

	my $look = q{SELECT waiting FROM pg_stat_admission_gate};
	my $holders =
	  q{SELECT pid FROM pg_stat_admission_gate_backends WHERE gate_state = 'running' AND pid <> pg_backend_pid()};
	is( psql($in, $look, $holders),
		join("\n", scalar @waiters, $holder->pid),
		"$how_in, a superuser connects and sees the pool and its holder");
	is(psql($in, @{ $out->{type} }), 't', "and $how_out");
	ok_free('which lets everybody in', @waiters);

	if ($out->{sqlstate})
	{
		is($holder->sqlstate, $out->{sqlstate}, 'and the holder is told');
	}
	else
	{
		ok(!$holder->done, 'while the holder goes on');
	}
	$gate->end_sessions;
	$gate->set(max_active_backends => 1, mode => 'enforce');
	$gate->ok_quiet("after one who $how_out");
	return;
}

for my $how_in (sort keys %way_in)
{
	get_in_and_out($how_in, $_) foreach sort keys %way_out;
}

# Without a connection, as docs/faq.md has it
{
	my ($holder, @waiters) = fill_the_server();
	my ($commands) = slurp_file("$top/docs/faq.md") =~ /^## I am locked out\n.*?\n\n((?:    [^\n]*\n)+)/ms;
	output_of('sh', '-euc', $commands);
	ok_free('whoever owns the files gets everybody out without a connection', @waiters);
	ok(!$holder->done, 'while the holder goes on');
	$gate->end_sessions;
	$gate->set(max_active_backends => 1);
}

# ----------------------------------------------------------------
# Those who need the bypass
# ----------------------------------------------------------------

# What they do on the server, in words like theirs: Patroni 3.0.2, pg_rewind,
# pgbouncer 1.18 with a function as its manual recommends, and so on.  options are
# those they connect with.  An array is a statement with its values in the extended
# protocol.
my %need = (
	postgres => {
		role => 'SUPERUSER REPLICATION',
		options => { statement_timeout => 60_000, search_path => 'pg_catalog' },
		statements => [
			q{SELECT CASE WHEN pg_is_in_recovery() THEN 0
				ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
				pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, pg_last_wal_replay_lsn(),
				slot_name, conninfo FROM pg_stat_get_wal_receiver()},
			q{SELECT pg_postmaster_start_time(), array_to_json(array_agg(row_to_json(r)))
				FROM (SELECT (SELECT rolname FROM pg_authid WHERE oid = usesysid), application_name, w.state
					FROM pg_stat_get_wal_senders() w, pg_stat_get_activity(pid)) r},
			q{SELECT slot_name, slot_type, plugin, database, datoid FROM pg_replication_slots},
			q{SELECT pg_create_physical_replication_slot('standby', true)
				WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'standby')},
			q{SELECT name, setting, context FROM pg_settings WHERE name = ANY ('{port,max_connections}')},
			q{SELECT txid_current()},
			q{DO $$ BEGIN SET LOCAL synchronous_commit = 'local'; ALTER ROLE postgres WITH REPLICATION; END $$},
			q{SELECT pg_reload_conf()},
			q{CHECKPOINT}
		]
	},
	rewind_user => {
		grants => [
			map { "GRANT EXECUTE ON FUNCTION pg_catalog.$_ TO rewind_user" } 'pg_ls_dir(text, boolean, boolean)',
			'pg_stat_file(text, boolean)',
			'pg_read_binary_file(text)',
			'pg_read_binary_file(text, bigint, bigint, boolean)'
		],
		options => { statement_timeout => 60_000 },
		statements => [
			q{SELECT pg_is_in_recovery()},
			q{SELECT timeline_id FROM pg_control_checkpoint()},
			q{SELECT count(*) FROM pg_ls_dir('global', true, false)},
			q{SELECT length(pg_read_binary_file('PG_VERSION', 0, 10, true))}
		]
	},
	pgbouncer => {
		grants => [
			'CREATE SCHEMA pgbouncer',
			q{CREATE FUNCTION pgbouncer.user_lookup(i text, OUT name text, OUT hash text) LANGUAGE plpgsql SECURITY DEFINER
				AS $$ BEGIN SELECT rolname, rolpassword INTO name, hash FROM pg_authid WHERE rolname = i AND rolcanlogin; END $$},
			'GRANT USAGE ON SCHEMA pgbouncer TO pgbouncer'
		],
		statements => [ [ 'SELECT name, hash FROM pgbouncer.user_lookup($1)', 'web' ] ]
	},
	pgpool => {
		role => 'IN ROLE pg_monitor',
		statements => [
			'SELECT pg_is_in_recovery()',
			'SELECT pg_current_wal_lsn()',
			'SELECT status, sender_host, sender_port FROM pg_stat_wal_receiver'
		]
	},
	odyssey => {
		grants => [
			'CREATE SCHEMA odyssey',
			q{CREATE FUNCTION odyssey.user_lookup(i text, OUT name text, OUT hash text) LANGUAGE sql SECURITY DEFINER
				AS 'SELECT rolname::text, rolpassword FROM pg_authid WHERE rolname = i AND rolcanlogin'},
			'GRANT USAGE ON SCHEMA odyssey TO odyssey'
		],
		statements => [
			[ 'SELECT name, hash FROM odyssey.user_lookup($1)', 'web' ],
			'SELECT extract(epoch FROM now())::int',
			'SELECT pg_is_in_recovery()'
		]
	},
	monitor => {
		role => 'IN ROLE pg_monitor',
		statements => [
			'SELECT version()',
			'SELECT * FROM pg_stat_database',
			'SELECT state, count(*) FROM pg_stat_activity GROUP BY state',
			'SELECT pg_database_size(current_database())',
			'SELECT * FROM pg_stat_admission_gate'
		]
	},
	backup => {
		role => 'IN ROLE pg_read_all_data',
		grants => [
			'GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean) TO backup',
			'GRANT EXECUTE ON FUNCTION pg_backup_stop(boolean) TO backup',
			'GRANT EXECUTE ON FUNCTION pg_switch_wal() TO backup'
		],
		statements => [
			'SELECT pg_try_advisory_lock(1)',
			"SELECT lsn FROM pg_backup_start('x', true) lsn",
			'SELECT lsn FROM pg_backup_stop(false)',
			'SELECT pg_switch_wal()'
		]
	},
	health => {
		statements => [ 'SELECT 1', 'SELECT pg_is_in_recovery()' ]
	},
	dba => {
		statements => [ 'SELECT * FROM pg_stat_activity', 'SELECT count(*) FROM pg_locks' ]
	});

sub start
{
	my ($session, $statement) = @_;
	return ref $statement ? $session->start_extended(@$statement) : $session->start($statement);
}

sub text_of { my ($statement) = @_; return (ref $statement ? $statement->[0] : $statement) =~ s/\s+/ /gr; }

my %line =
  map { /^ALTER ROLE (\w+)/ ? ($1 => $_) : () } slurp_file("$top/docs/operations.md") =~ /^\| .* \| `([^`]+)` \|$/mg;
is_deeply(
	[ sort keys %line ],
	[ sort keys %need ],
	'docs/operations.md has a line for each that is tested here, and no others');

for my $role (sort keys %need)
{
	my $need = $need{$role};
	$gate->value("CREATE ROLE $role LOGIN " . ($need->{role} // '')) if $role ne 'dba';
	$gate->value($_) foreach @{ $need->{grants} // [] };

	my $holder = $gate->holder(user => 'web');
	my @session = (user => $role, session => $need->{options} // {});
	my $is_superuser = $gate->value("SELECT rolsuper FROM pg_roles WHERE rolname = '$role'") eq 't';

	# Superusers have the reserve, but only as many as it is large.
	my @reserve = map { $gate->session(user => $role) } 1 .. ($is_superuser ? 3 : 0);
	$_->query('BEGIN') foreach @reserve;
	my $session = $gate->session(@session);
	start($session, $need->{statements}[0]);
	$gate->ok_waits($session, "without the bypass, $role waits when the gate is full");
	$session->cancel;
	$session->result;
	$_->quit foreach ($session, @reserve);

	$gate->value($line{$role});
	$session = $gate->session(@session);
	for my $statement (@{ $need->{statements} })
	{
		start($session, $statement);
		$gate->ok_passes($session, "$role passes by its line: " . text_of($statement));
	}
	$session->quit;
	$holder->quit;
}

# Real programs
{
	my $holder = $gate->holder(user => 'web');
	like(output_of('pg_isready'), qr/accepting connections/, 'pg_isready passes a full gate');
	like(output_of('pg_dump', '-U', 'backup'), qr/PostgreSQL database dump complete/, 'pg_dump passes by its line');
	$holder->quit;
}
$gate->ok_quiet('after those who bypass the gate');

# ----------------------------------------------------------------
# Grants
# ----------------------------------------------------------------

# A user finds no way around: not in what belongs to him either.
{
	$gate->value($_) foreach ('CREATE DATABASE owned OWNER web', 'GRANT CREATE ON SCHEMA public TO web');
	my $web = $gate->session(user => 'web');
	for my $sql (
		"SELECT set_config('admission_gate.bypass', 'on', false)",
		'ALTER ROLE web SET admission_gate.bypass = on',
		'ALTER DATABASE owned SET admission_gate.bypass = on',
		'ALTER ROLE web IN DATABASE owned SET admission_gate.bypass = on',
		'CREATE FUNCTION f() RETURNS int LANGUAGE sql SET admission_gate.bypass = on AS $$ SELECT 1 $$',
		'GRANT SET ON PARAMETER admission_gate.bypass TO web')
	{
		is($web->start($sql)->sqlstate, '42501', "a user cannot say $sql");
	}
	$web->quit;

	my $refused = $gate->session(
		user => 'web',
		session => { 'admission_gate.bypass' => 'on' },
		may_fail => 1);
	ok($refused->closed, 'a user cannot connect with bypass');
}

# What may be granted, and that it works
{
	$gate->value('CREATE ROLE operator LOGIN IN ROLE pg_monitor');
	my @change = ('ALTER SYSTEM SET admission_gate.max_active_backends = 2', 'SELECT pg_reload_conf()');
	my $operator = $gate->session(user => 'operator');
	is($operator->start($_)->sqlstate, '42501', "without a grant, pg_monitor cannot say $_")
	  foreach ('SET admission_gate.bypass = on', @change);
	$gate->value($_)
	  foreach (
		'GRANT SET ON PARAMETER admission_gate.bypass TO operator',
		'GRANT ALTER SYSTEM ON PARAMETER admission_gate.max_active_backends TO operator',
		'GRANT EXECUTE ON FUNCTION pg_reload_conf() TO operator');

	my $holder = $gate->holder(user => 'web');
	my $waiter = $gate->session(user => 'web');
	$waiter->start('SELECT 1');
	$gate->await_queued($waiter);
	for my $sql ('SET admission_gate.bypass = on', @change)
	{
		$operator->start($sql);
		$gate->ok_passes($operator, "with one, it can say so while the gate is full: $sql");
	}
	ok_free('which frees the queue', $waiter);
	is($operator->start('ALTER SYSTEM SET admission_gate.handoff_after = 0')->sqlstate,
		'42501', 'a grant is for one setting');
	$_->quit foreach ($holder, $waiter, $operator);
	$gate->set(max_active_backends => 1);
}

# Members of a role see its sessions, as in pg_stat_activity; others do not.
{
	$gate->value($_)
	  foreach (
		'CREATE ROLE member LOGIN IN ROLE web',
		'CREATE ROLE stranger LOGIN',
		map { "ALTER ROLE $_ SET admission_gate.bypass = on" } 'member', 'stranger');
	my $holder = $gate->holder(user => 'web');
	my $query = 'SELECT pid, gate_state FROM pg_stat_admission_gate_backends';
	my %seen = (member => 'running', stranger => '');
	for my $role (sort keys %seen)
	{
		my $session = $gate->session(user => $role);
		is($session->query($query), $holder->pid . "|$seen{$role}", "what a $role sees of a session");
		$session->quit;
	}
	$holder->quit;
}

$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');
$node->stop;

done_testing();
