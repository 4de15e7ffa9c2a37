# Proves that README.md works as written: runs its commands, in their order, on a
# server as initdb makes it; and that it stays short.
#
# make only says what it would do, since that is what `make test` and others do.

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
my $readme = slurp_file("$top/README.md");

my $node = PostgreSQL::Test::Cluster->new('readme');
$node->init;
$node->start;
my $gate = GateTest->around($node);

my $bindir = $node->config_data('--bindir');
my $programs = PostgreSQL::Test::Utils::tempdir();
my ($make) = grep { -x } map { "$_/make" } split /:/, $ENV{PATH};
append_to_file("$programs/make", qq{#!/bin/sh\nexec '$make' -n -C '$top' PG_CONFIG='$bindir/pg_config' "\$@"\n});
append_to_file("$programs/sudo", qq{#!/bin/sh\nexec "\$@"\n});
chmod 0755, glob "$programs/*";

# What the make that runs this has put into the environment is not for the other one.
local %ENV = (
	%ENV,
	PATH => "$programs:$bindir:$ENV{PATH}",
	PGHOST => $node->host,
	PGPORT => $node->port,
	PGDATABASE => 'postgres');
delete local @ENV{qw(PGAPPNAME MAKEFLAGS MAKELEVEL MFLAGS MAKEOVERRIDES)};

# How to run a block, from a file, by its language
my $file = "$programs/block";
my @restart = ('pg_ctl', 'restart', '-w', '-D', $node->data_dir, '-l', $node->logfile);
my %command = (
	sh => [ 'sh', '-eu', $file ],
	sql => [ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', $file ],
	conf => [
		'sh', '-euc', 'cat "$1" >>"$2"; shift 2; exec "$@"',
		'sh', $file, $node->data_dir . '/postgresql.conf', @restart
	]);

# ----------------------------------------------------------------
# Commands
# ----------------------------------------------------------------

my @blocks = $readme =~ /^ *```(\w+)\n(.*?)^ *```$/msg;
cmp_ok(scalar @blocks, '>', 0, 'there are commands');
is($node->safe_psql('postgres', "CREATE ROLE $_ LOGIN"), '', "the role $_ of the examples is there") foreach do
{
	my %role = map { $_ => 1 } $readme =~ /ALTER ROLE (\w+)/g;
	sort keys %role;
};

while (my ($language, $block) = splice @blocks, 0, 2)
{
	my $name = $block =~ s/\n.*//sr;
	ok($command{$language}, "is of a kind that can be run: $language") or next;

	unlink $file;
	append_to_file($file, $block);
	my $output = '';
	my $ended = eval {
		IPC::Run::run($command{$language}, '<' => \undef, '>&' => \$output, IPC::Run::timeout($GateClient::patience));
	};
	ok($ended, "works: $name") or diag $output, $@;
	note $block, $output;

	# What it says of the limit comes true.
	if (my ($limit) = $block =~ /max_active_backends = (-?\d+)/)
	{
		$gate->await("SELECT max_active = $limit FROM pg_stat_admission_gate WHERE pool = 'default'",
			"a limit of $limit");
	}
}

is(system("make $_ >/dev/null 2>&1"), 0, "there is make $_") foreach $readme =~ /`make ([\w-]+)`/g;

# Commands elsewhere would not be run.
my @other = grep { /^(?:make|sudo|psql|pg_\w+|createdb|[A-Z]+=\S+|SELECT|SET|ALTER|CREATE|GRANT)\b/ }
  map { s/^    //r } $readme =~ /^(    .*)$/mg;
is_deeply(\@other, [], 'no command stands outside of the blocks that are run');

# ----------------------------------------------------------------
# Its size
# ----------------------------------------------------------------

my @lines = split /\n/, $readme;
my %line = map { $lines[$_] =~ /^## (.+)/ ? ($1 => $_ + 1) : () } 0 .. $#lines;
cmp_ok(scalar @lines, '<=', 120, 'it is read in two minutes');
cmp_ok($line{Install}, '<', 40, 'and soon comes to the installation');
is_deeply(
	[ sort { $line{$a} <=> $line{$b} } keys %line ],
	[
		'Is it for me?',
		'What it changes',
		'Try it', 'Install', 'Quick start', 'Monitor',
		'Emergency off',
		'How it behaves',
		'Limitations', 'Documentation, help, contributing'
	],
	'its headings come in the order of use');

# The file has the server restarted.
$node->_update_pid(1);
$node->stop;

done_testing();
