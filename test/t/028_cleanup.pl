# Proves that what test/setup.sh gives the scripts of test/ and bench/ leaves nothing
# behind: however such a script ends, its inner half, its server and its directory go.
#
# A script of this kind stands in for them.  Like theirs, its server is a program in that
# directory, with a session of its own.

use strict;
use warnings;

use FindBin;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

# A short name, as it is to hold sockets.
local $ENV{TMPDIR} = PostgreSQL::Test::Utils::tempdir_short();
delete local $ENV{KEEP};

my $script = PostgreSQL::Test::Utils::tempdir() . '/script';
append_to_file($script, <<'END');
. "$1"/../setup.sh
save_results() { say "results are saved"; }
make_workdir
cp "$(command -v sleep)" "$WORK/postgres"
setsid -f "$WORK/postgres" 1000 >/dev/null
until server=$(server_pids); [ -n "$server" ]; do sleep 0.1; done
set -m
if [ "$2" = talk ]; then
    while say "going on"; do sleep 0.1; done &
else
    sleep 1000 >/dev/null &
fi
INSIDE=$!
set +m
say "$WORK $INSIDE $server"
[ "$2" = end ] && exit 3
wait "$INSIDE"
END

sub is_gone
{
	my ($name, $work, @pids) = @_;

	is(scalar(@pids), 2, "$name: it was at work");
	ok(!-e $work, "$name: its directory is removed");
	ok(!defined readlink("/proc/$_/exe"), "$name: process $_ has ended") foreach @pids;
	return;
}

# Starts it and waits until it is at work.  Returns it, and what it said of itself:
# the directory, and the processes of the inner half and of the server.
sub begin
{
	my ($way, $output) = @_;
	my $run = IPC::Run::start([ 'bash', $script, $FindBin::RealBin, $way ], '<', \undef, '>', $output,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	$run->pump until $$output =~ /\n/;
	return ($run, split ' ', ($$output =~ /(.*)/)[0]);
}

{
	my ($run, @traces) = begin('end', \my $output);

	$run->finish;
	is($run->result(0), 3, 'at its end: with its own status');
	like($output, qr/results are saved/, 'at its end: results are saved');
	is_gone('at its end', @traces);
}

foreach my $signal (qw(INT TERM HUP))
{
	my ($run, @traces) = begin('wait', \my $output);

	$run->signal($signal);
	$run->finish;
	like($output, qr/results are saved/, "$signal: results are saved");
	is_gone($signal, @traces);
}

# Its reader goes away, as in `make bench | grep -m 1 failed`.
{
	my $traces = PostgreSQL::Test::Utils::tempdir() . '/traces';

	# IPC::Run ignores SIGPIPE, and what is ignored stays so.
	IPC::Run::run([ 'bash', $script, $FindBin::RealBin, 'talk' ], '2>', '/dev/null',
		init => sub { $SIG{PIPE} = 'DEFAULT' },
		'|', [ 'grep', '-m', '1', '/' ], '>', $traces);
	is_gone('without a reader', split ' ', slurp_file($traces));
}

done_testing();
