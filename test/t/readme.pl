# Proves that README.md and docs/tutorial.md work as written: runs their commands, in
# their order, each on a server as initdb makes it.
#
# make only says what it would do, since that is what `make test` and others do; pgbench
# runs for a second, and sleep for half of that.

use strict;
use warnings;
use lib 'test/perl';
use Cwd;
use GateTest;

my $top = getcwd;
my $bindir = PostgreSQL::Test::Cluster->new('packaged')->config_data('--bindir');

# Where the pages are tried, with programs that take the places of others
my $home = PostgreSQL::Test::Utils::tempdir();
my ($make) = grep { -x } map { "$_/make" } split /:/, $ENV{PATH};
my %program = (
	make => qq{exec '$make' -n -C '$top' PG_CONFIG='$bindir/pg_config' "\$@"\n},
	sudo => qq{exec "\$@"\n},
	sleep => "exec /bin/sleep 0.5\n",
	pgbench => <<"END");
for argument; do
	shift
	[ "\$last" != -T ] || argument=1
	set -- "\$@" "\$argument"
	last=\$argument
done
exec '$bindir/pgbench' "\$@"
END
mkdir "$home/bin" or die $!;
append_to_file("$home/bin/$_", "#!/bin/sh\n$program{$_}") foreach keys %program;
chmod 0755, glob "$home/bin/*";

# What the make that runs this has put into the environment is not for the other one.
local %ENV = (%ENV, PATH => "$home/bin:$bindir:$ENV{PATH}", PGDATABASE => 'postgres');
delete local @ENV{qw(PGAPPNAME MAKEFLAGS MAKELEVEL MFLAGS MAKEOVERRIDES)};

for my $page ('README.md', 'docs/tutorial.md')
{
	my $text = slurp_file("$top/$page");
	my $node = PostgreSQL::Test::Cluster->new($page =~ s/\W/_/gr);
	$node->init;
	$node->append_conf('postgresql.conf', 'fsync = on');
	$node->start;
	my $gate = GateTest->around($node);
	local @ENV{qw(PGHOST PGPORT PGDATA)} = ($node->host, $node->port, $node->data_dir);

	# How to run a block, from a file, by its language
	my $file = "$home/block";
	my $configure = 'cat block >>"$PGDATA/postgresql.conf" && pg_ctl restart -w -l "$1"';
	my %command = (
		sh => [ 'sh', '-eu', $file ],
		sql => [ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', $file ],
		conf => [ 'sh', '-euc', $configure, 'sh', $node->logfile ]);

	my %role = map { $_ => 1 } $text =~ /ALTER ROLE (\w+)/g;
	$node->safe_psql('postgres', "CREATE ROLE $_ LOGIN") foreach sort keys %role;

	my @blocks = $text =~ /^ *```(\w+)\n(.*?)^ *```$/msg;
	cmp_ok(scalar @blocks, '>', 0, "$page: there are commands");
	chdir $home or die $!;
	while (my ($language, $block) = splice @blocks, 0, 2)
	{
		my $name = $block =~ s/\n.*//sr;
		ok($command{$language}, "$page: is of a kind that can be run: $language") or next;

		unlink $file;
		append_to_file($file, $block);
		my $output = '';
		my $ended = eval {
			IPC::Run::run(
				$command{$language},
				'<' => \undef,
				'>&' => \$output,
				IPC::Run::timeout($GateClient::patience));
		};
		ok($ended, "$page: works: $name") or diag $output, $@;
		note $block, $output;

		# What README.md says of the limit comes true.
		my ($limit) = $block =~ /^ *ALTER SYSTEM SET admission_gate.max_active_backends = (-?\d+);/m;
		$gate->await("SELECT max_active = $limit FROM pg_stat_admission_gate WHERE pool = 'default'") if defined $limit;
	}
	is(system("make $_ >/dev/null 2>&1"), 0, "$page: there is make $_") foreach $text =~ /`make ([\w-]+)`/g;
	chdir $top or die $!;

	is( $node->safe_psql(
			'postgres',
			q(SELECT count(*) FROM pg_settings WHERE name LIKE 'admission\_gate.%' AND source = 'configuration file')),
		'0',
		"$page: no setting is left behind") if $page =~ /tutorial/;

	# The page has restarted the server.
	$node->_update_pid(1);
	$node->stop;
}

done_testing();
