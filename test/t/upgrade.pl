# Proves that old installations go on: for each version of the extension that can be
# installed and updated to the present one, its views and functions work with the
# present library, at each step of the way, and at the end everything is as in a new
# installation: objects, definitions, comments and privileges.
#
# So that this is proven before there is a second version, too, an earlier one is made
# up, if the test may write to the installation, as it may in `make test`.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use GateVersions;
use Test::More;

my $gate = GateTest->new('upgrade', max_active_backends => 5);
my $directory = $gate->value(q{SELECT setting FROM pg_config() WHERE name = 'SHAREDIR'}) . '/extension';
my $present = $gate->value(q{SELECT extversion FROM pg_extension WHERE extname = 'admission_gate'});

if (-w $directory)
{
	make_up_version($directory, $present);
}
else
{
	note "there is only what is installed, as I may not write to $directory";
}

# ----------------------------------------------------------------
# From every version to the present one
# ----------------------------------------------------------------

# Reads all views and calls all functions.
sub ok_works
{
	my ($session, $version) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my @sources = split /\n/, $session->query(
		q{SELECT CASE d.classid WHEN 'pg_proc'::regclass THEN d.objid::regprocedure::text ELSE d.objid::regclass::text END
			FROM pg_depend d
			WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND d.classid IN ('pg_proc'::regclass, 'pg_class'::regclass)
				AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'admission_gate')});
	cmp_ok(scalar @sources, '>', 0, "there is something in version $version");
	my @fail = grep {
		my $source = $_;
		!eval { $session->query("SELECT * FROM $source"); 1 }
	} @sources;
	is_deeply(\@fail, [], "in version $version, all views and functions work with the present library");
	return;
}

my $fresh = objects_in($gate->observer);
cmp_ok(scalar @$fresh, '>', 5, 'a new installation has objects');

my @paths = split /\n/, $gate->value(
	qq{SELECT path FROM pg_extension_update_paths('admission_gate') JOIN pg_available_extension_versions ON version = source
		WHERE name = 'admission_gate' AND target = '$present' AND path IS NOT NULL ORDER BY version});
for my $path (@paths)
{
	my ($first, @steps) = split /--/, $path;
	$gate->value('CREATE DATABASE updated');
	my $session = $gate->session(database => 'updated');

	$session->query("CREATE EXTENSION admission_gate VERSION '$first'");
	ok_works($session, $first);
	isnt(join("\n", @{ objects_in($session) }), join("\n", @$fresh), "version $first differs from $present");
	for my $version (@steps)
	{
		$session->query("ALTER EXTENSION admission_gate UPDATE TO '$version'");
		ok_works($session, $version);
	}
	is_deeply(objects_in($session), $fresh, "updated from $first, everything is as in a new installation");

	$session->quit;
	$gate->await(q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'updated')}, 'the session to end');
	$gate->value('DROP DATABASE updated');
}
ok(@paths || !-w $directory, 'there was a version to update from');

$gate->node->stop;

done_testing();
