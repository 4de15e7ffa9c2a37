# Proves that pg_upgrade takes a server with the gate along, here to another of the same
# version: the settings of roles and databases, the extension and what depends on it are there
# afterwards, and the gate limits.  A gate that refuses nearly everybody, on
# either side, is not in the way.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

# Nobody gets a slot without luck.
my %settings = (
	shared_preload_libraries => 'admission_gate',
	pools => 'batch: max_active = 1',
	max_active_backends => 1,
	max_queue_length => 0,
	idle_after => -1);
my $old = GateTest->new('old', %settings);
$old->value(
	'CREATE ROLE monitor LOGIN',
	'CREATE ROLE analyst LOGIN',
	'ALTER ROLE monitor SET admission_gate.bypass = on',
	"ALTER ROLE analyst SET admission_gate.pool = 'batch'",
	"ALTER ROLE analyst IN DATABASE postgres SET admission_gate.long_after = -1",
	"ALTER DATABASE postgres SET admission_gate.queue_timeout = '1h'",
	'CREATE VIEW watched AS SELECT pool, running, waiting FROM pg_stat_admission_gate');

# What has to be the same afterwards
my @kept = (
	q{SELECT rolname, datname, setconfig FROM pg_db_role_setting
		LEFT JOIN pg_roles r ON r.oid = setrole LEFT JOIN pg_database d ON d.oid = setdatabase ORDER BY rolname, datname},
	'SELECT extname, extversion FROM pg_extension ORDER BY extname');

sub kept
{
	my ($gate) = @_;
	return { map { $_ => $gate->value($_) } @kept };
}

my $before = kept($old);
is(scalar(grep { $_ eq '' } values %$before), 0, 'there is something to be kept of each kind');
$old->node->stop;

my $new = GateTest->around(PostgreSQL::Test::Cluster->new('new'));
$new->node->init;
$new->configure(%settings);
my @command = ('pg_upgrade', '--jobs=4', '--socketdir=' . $new->node->host);
my %node = (old => $old->node, new => $new->node);
push @command, "--$_-bindir=" . $node{$_}->config_data('--bindir'), "--$_-datadir=" . $node{$_}->data_dir,
  "--$_-port=" . $node{$_}->port
  foreach keys %node;

# It leaves a script behind.
chdir $PostgreSQL::Test::Utils::tmp_check or die $!;
command_ok(\@command, 'pg_upgrade does well');
$new->node->start;
is_deeply(kept($new), $before, 'settings of roles and databases, and the extension are kept');

my $holder = $new->holder(user => 'analyst');
is($new->value(q{SELECT running FROM watched WHERE pool = 'batch'}), '1', "a role's pool counts it, as a view shows");
is($new->session(user => 'analyst')->start('SELECT 1')->sqlstate, '53400', 'and limits');
$new->ok_runs($new->session(user => 'monitor'), 'SELECT 1', 'another role bypasses the gate');
$new->node->stop;
done_testing();
