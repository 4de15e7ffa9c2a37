# Proves that pg_upgrade takes a server with the gate to a newer major version: the
# settings of roles and databases, privileges, the extension and what depends on it
# are there afterwards, and the gate limits.  Neither a gate that refuses nearly
# everybody is in the way, on either side, nor a new server that does not preload the
# library yet.
#
# OLD_PG_CONFIG names the older PostgreSQL, which has the extension, too; `make test`
# sets it if there is one.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

plan skip_all => 'OLD_PG_CONFIG names no older PostgreSQL' if !$ENV{OLD_PG_CONFIG};

my ($old_path) = `$ENV{OLD_PG_CONFIG} --bindir` =~ m{(.*)/};

# Both may have checksums, or not; a newer initdb has another default.
my %init = (extra => ['--data-checksums']);

my %preloaded = (
	shared_preload_libraries => 'admission_gate',
	max_active_backends => 5,
	pools => 'batch: max_active = 1');

# Nobody gets a slot without luck.
my %narrow = (max_active_backends => 1, max_queue_length => 0, lend_after => 60_000);

# The old server
my $old = GateTest->new('old', node => { install_path => $old_path }, init => \%init, %preloaded, %narrow);
$old->value(
	'CREATE ROLE monitor LOGIN',
	'CREATE ROLE analyst LOGIN',
	'ALTER ROLE monitor SET admission_gate.bypass = on',
	"ALTER ROLE analyst SET admission_gate.pool = 'batch'",
	"ALTER ROLE analyst IN DATABASE postgres SET admission_gate.scope = 'statement'",
	"ALTER DATABASE postgres SET admission_gate.queue_timeout = '1h'",
	'GRANT SET ON PARAMETER admission_gate.bypass TO monitor',
	'GRANT ALTER SYSTEM ON PARAMETER admission_gate.max_active_backends TO monitor',
	'GRANT EXECUTE ON FUNCTION pg_stat_admission_gate_reset() TO monitor',
	'REVOKE SELECT ON pg_stat_admission_gate_histogram FROM PUBLIC',
	'GRANT SELECT ON pg_stat_admission_gate_histogram TO monitor',
	'CREATE VIEW watched AS SELECT pool, running, waiting FROM pg_stat_admission_gate');

# What has to be the same afterwards
my @kept = (
	q{SELECT rolname, datname, setconfig FROM pg_db_role_setting
		LEFT JOIN pg_roles r ON r.oid = setrole LEFT JOIN pg_database d ON d.oid = setdatabase ORDER BY rolname, datname},
	'SELECT parname, paracl FROM pg_parameter_acl ORDER BY parname',
	# The owner's own privileges have become more.
	q{SELECT relname, grantee::regrole, privilege_type FROM pg_class, aclexplode(relacl)
		WHERE relname LIKE '%admission\_gate%' AND grantee <> relowner ORDER BY 1, 2, 3},
	q{SELECT proname, proacl FROM pg_proc WHERE proname LIKE '%admission\_gate%' ORDER BY proname},
	'SELECT extname, extversion FROM pg_extension ORDER BY extname');

sub kept
{
	my ($gate) = @_;
	return { map { $_ => $gate->value($_) } @kept };
}

my $before = kept($old);
is(scalar(grep { $_ eq '' } values %$before), 0, 'there is something to be kept of each kind');
$old->node->stop;

# Makes a new server, runs pg_upgrade with several jobs at once, and starts it.
sub upgrade_to
{
	my ($name, %settings) = @_;
	my $new = PostgreSQL::Test::Cluster->new($name);
	my $gate = GateTest->around($new);

	$new->init(%init);
	$gate->configure(%settings);
	my @command = ('pg_upgrade', '--jobs=4', '--socketdir=' . $new->host);
	my %node = (old => $old->node, new => $new);
	push @command, "--$_-bindir=" . $node{$_}->config_data('--bindir'), "--$_-datadir=" . $node{$_}->data_dir,
	  "--$_-port=" . $node{$_}->port
	  foreach keys %node;

	# It leaves a script behind.
	chdir $PostgreSQL::Test::Utils::tmp_check or die $!;
	my $output;
	ok(IPC::Run::run(\@command, '>&', \$output), "pg_upgrade to one that $name")
	  or (diag($output), die "there is no server to go on with\n");
	$new->start;
	is_deeply(kept($gate), $before, "$name: settings of roles and databases, privileges, extension and views are kept");
	return $gate;
}

# By the role's setting, the limit is that of the pool.
sub ok_limits
{
	my ($gate, $when) = @_;
	my ($holder, $other) = map { $gate->session(user => 'analyst') } 1 .. 2;

	$holder->start("SELECT pg_sleep(3600)");
	$gate->await("SELECT running = 1 FROM watched WHERE pool = 'batch'", 'a session at work');
	$gate->ok_queues($other, 'SELECT 1', "$when: a role's pool limits");
	$gate->ok_runs(
		$gate->session(user => 'monitor'),
		'TABLE pg_stat_admission_gate_histogram',
		"$when: another role bypasses the gate");
	$gate->stop_worker($holder);
	return is($other->result->{tags}[0], 'SELECT 1', "$when: who waited is admitted");
}

my $gate = upgrade_to('preloads', %preloaded, %narrow);
$gate->set(max_active_backends => 5, max_queue_length => -1);
ok_limits($gate, 'preloaded');
$gate->node->stop;

$gate = upgrade_to('does_not_preload');
like(
	$gate->observer->start('TABLE watched')->result->{error}{M} // '',
	qr/must be loaded via "shared_preload_libraries"/,
	'not preloaded: a view says what is missing');
$gate->node->stop;
$gate->configure(%preloaded);
$gate->node->start;
$gate->await_restart;
ok_limits($gate, 'preloaded later');
$gate->node->stop;
done_testing();
