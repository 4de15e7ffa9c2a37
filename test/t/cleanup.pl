# Proves that what test/setup.sh gives the scripts of test/ and bench/ leaves nothing
# behind: however such a script ends, its inner half, its server and its directory go.
#
# A script of this kind stands in for them.  Like theirs, its server is a program in that
# directory, with a session of its own.

use strict;
use warnings;

use File::Temp;
use FindBin;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# Where `make test` cleans up even if this test is killed; a short name, as a directory
# in it could be to hold sockets.
my $place = $ENV{WORK} && length $ENV{WORK} <= 31 ? $ENV{WORK} : '/tmp';
my $parent = File::Temp->newdir("$place/XXXXXX");
local $ENV{TMPDIR} = $parent->dirname;
delete local $ENV{KEEP};

my $script = PostgreSQL::Test::Utils::tempdir() . '/script';
append_to_file($script, <<'END');
. "$1"/../setup.sh
ulimit -c 0
save_results() { say "results are saved"; }
make_workdir
cp "$(command -v sleep)" "$WORK/sleep"
setsid -f "$WORK/sleep" 300 >/dev/null 2>&1
for _ in {1..100}; do
    server=$(server_pids)
    [ -z "$server" ] || break
    sleep 0.1
done
set -m
if [ "$2" = talk ]; then
    while say "going on"; do sleep 0.1; done &
else
    sleep 300 >/dev/null 2>&1 &
fi
INSIDE=$!
set +m
say "$INSIDE $server $WORK"
[ "$2" = end ] && exit 3
wait "$INSIDE"
END

# For one of IPC::Run's commands.  A signal that is ignored stays so in a shell, and
# PostgreSQL::Test::Utils ignores SIGPIPE, nohup SIGHUP.
my @heeding = (init => sub { $SIG{$_} = 'DEFAULT' foreach qw(HUP INT QUIT TERM PIPE) });

my ($run, @started);

sub timeout { return IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default); }

END
{
	my $status = $?;

	$run->kill_kill if $run && $run->pumpable;
	kill 'KILL', -$started[0], $started[1] if @started;
	$? = $status;
}

# What was at work, by the line that the script said of itself, is gone.
sub is_gone
{
	my ($name, $line) = @_;
	my ($inside, $server, $work) = $line =~ /^(\d+) (\d+) (.+)$/;

	@started = ();
	ok(defined $work, "$name: it was at work") or return diag($line);
	ok(!-e $work, "$name: its directory is removed");
	# One that is killed may take a moment.
	my @left;
	for (1 .. 100)
	{
		@left = grep { defined readlink "/proc/$_/exe" } $inside, $server;
		last if !@left;
		usleep(50_000);
	}
	is("@left", '', "$name: its inner half and its server have ended") or kill 'KILL', -$inside, $server;
	return;
}

# Runs the script until its end, or until that signal once it is at work.
foreach my $signal ('', qw(INT TERM HUP))
{
	my $name = $signal || 'at its end';
	my $way = $signal ? 'wait' : 'end';
	my $output;
	$run =
	  IPC::Run::start([ 'bash', $script, $FindBin::RealBin, $way ], @heeding, '<', \undef, '>', \$output, timeout());
	$run->pump until $output =~ /\n/;
	@started = $output =~ /^(\d+) (\d+) /;
	$run->signal($signal) if $signal;
	$run->finish;
	is($run->result(0), 3, "$name: with its own status") if !$signal;
	like($output, qr/results are saved/, "$name: results are saved");
	is_gone($name, $output =~ /(.*)/);
}

# Its reader goes away, as in `make bench | grep -m 1 failed`.
$run = IPC::Run::start(
	[ 'bash', $script, $FindBin::RealBin, 'talk' ],
	@heeding, '2>', \my $errors, '|', [ 'grep', '-m', '1', '/' ],
	'>', \my $output, timeout());
$run->finish;
note($errors);
is_gone('without a reader', $output =~ /(.*)/);

done_testing();
