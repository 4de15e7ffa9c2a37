# Proves that docs/tutorial.md works as written: runs its commands, in their
# order, on a server as initdb makes it.
#
# Only pgbench runs for a second instead of what the page says, or for as long
# as GATE_TUTORIAL_SECONDS says, and whoever sleeps meanwhile half of that.

use strict;
use warnings;

use Cwd;
use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{GATE_TUTORIAL_SECONDS} // 1;
my @steps = slurp_file("$FindBin::RealBin/../../docs/tutorial.md") =~ /^```sh\n(.*?)^```$/msg;

my $node = PostgreSQL::Test::Cluster->new('tutorial');
$node->init;
$node->append_conf('postgresql.conf', 'fsync = on');
$node->start;

my $home = PostgreSQL::Test::Utils::tempdir();
my $pgbench = $node->config_data('--bindir') . '/pgbench';
mkdir "$home/bin" or die $!;
append_to_file("$home/bin/pgbench", <<"END");
#!/bin/sh
for argument; do
	shift
	[ "\$last" != -T ] || argument=$seconds
	set -- "\$@" "\$argument"
	last=\$argument
done
exec '$pgbench' "\$@"
END
append_to_file("$home/bin/sleep", "#!/bin/sh\nexec /bin/sleep " . $seconds / 2 . "\n");
chmod 0755, glob "$home/bin/*";

local %ENV = (
	%ENV,
	PATH => "$home/bin:" . $node->config_data('--bindir') . ":$ENV{PATH}",
	PGHOST => $node->host,
	PGPORT => $node->port,
	PGDATABASE => 'postgres',
	PGDATA => $node->data_dir);
delete local $ENV{PGAPPNAME};

cmp_ok(scalar @steps, '>', 0, 'there are commands');
my $from = getcwd;
chdir $home or die $!;
for my $step (@steps)
{
	my $script = "$home/step";
	unlink $script;
	append_to_file($script, $step);
	my $output = qx(sh -eu "$script" </dev/null 2>&1);
	is($?, 0, 'works: ' . $step =~ s/\n.*//sr) or diag $output;
	note $step, $output;
}
chdir $from or die $!;

# Its end
is( $node->safe_psql(
		'postgres',
		q(SELECT count(*) FROM pg_settings WHERE name LIKE 'admission\_gate.%' AND source = 'configuration file')),
	'0',
	'no setting is left behind');

# The page has restarted the server.
$node->_update_pid(1);
$node->stop;

done_testing();
