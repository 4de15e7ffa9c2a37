# Proves that old installations go on: for each version of the extension that can be
# installed and updated to the present one, its views and functions work with the
# present library, at each step of the way, and at the end everything is as in a new
# installation: objects, definitions, comments and privileges.
#
# So that this is proven before there is a second version, too, an earlier one is made
# up, if the test may write to the installation, as it may in `make test`.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new('upgrade', max_active_backends => 5);
my $directory = $gate->value(q{SELECT setting FROM pg_config() WHERE name = 'SHAREDIR'}) . '/extension';
my $present = $gate->value(q{SELECT extversion FROM pg_extension WHERE extname = 'admission_gate'});

my @made_up;
END { unlink @made_up; }

# Writes two scripts: of a version before the present one, and to update it.  It lacks the
# last column of one view and its function, and another function.
sub make_up_version
{
	my $column =
	  qr/,\s*OUT \w+ \w+(?=\s*\)\s*RETURNS SETOF record\s+AS 'MODULE_PATHNAME'(?:, 'pg_stat_get_admission_gate')?\s)/;
	my $with_column = qr/\bpg_stat_(?:get_)?admission_gate\b/;
	my $missing = qr/\bpg_stat_admission_gate_reset\b/;

	my @statements = map { "$_;\n" } split /;\n/, slurp_file("$directory/admission_gate--$present.sql");
	my @same = grep { !/$with_column/ && !/$missing/ } @statements;
	my @changed = grep { /$with_column/ } @statements;
	my @added = grep { /$missing/ } @statements;
	my @before = @changed;
	die "no version can be made up of $present\n" if 1 != grep { s/$column// } @before;

	@made_up = map { "$directory/admission_gate--0.made_up$_.sql" } '', "--$present";
	append_to_file($made_up[0], join '', @before, @same);
	append_to_file($made_up[1], join '',
		"DROP VIEW pg_stat_admission_gate;\nDROP FUNCTION pg_stat_get_admission_gate();\n",
		@changed, @added);
	return;
}

# All that belongs to the extension, with what there is to say of each
my $objects = q{
	SELECT json_build_array(pg_describe_object(d.classid, d.objid, d.objsubid), obj_description(d.objid, d.classid::regclass::name),
		pg_get_functiondef(p.oid), p.proowner::regrole, p.proacl,
		pg_get_viewdef(c.oid), c.relkind, c.relowner::regrole, c.relacl, c.reloptions,
		(SELECT json_agg(json_build_array(attname, format_type(atttypid, atttypmod), col_description(attrelid, attnum), attacl) ORDER BY attnum)
			FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
		i.initprivs)
	FROM pg_depend d
		LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
		LEFT JOIN pg_init_privs i ON i.classoid = d.classid AND i.objoid = d.objid AND i.objsubid = d.objsubid
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
		AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'admission_gate')
	UNION ALL
	SELECT json_build_array(extname, extversion, extrelocatable, extnamespace::regnamespace, extconfig, obj_description(oid, 'pg_extension'))
	FROM pg_extension WHERE extname = 'admission_gate'};

# The objects that a session finds in its database; sorted here, as collations differ
sub objects_in { return join "\n", sort split /\n/, $_[0]->query($objects); }

# Reads all views and calls all functions.
sub ok_works
{
	my ($session, $version) = @_;

	my @sources = split /\n/, $session->query(
		q{SELECT CASE d.classid WHEN 'pg_proc'::regclass THEN d.objid::regprocedure::text ELSE d.objid::regclass::text END
			FROM pg_depend d
			WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND d.classid IN ('pg_proc'::regclass, 'pg_class'::regclass)
				AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'admission_gate')});
	cmp_ok(scalar @sources, '>', 5, "there is something in version $version");
	my @fail = grep {
		!eval { $session->query("SELECT * FROM $_"); 1 }
	} @sources;
	return is(join(' ', @fail), '', "in version $version, all views and functions work with the present library");
}

-w $directory ? make_up_version() : note "there is only what is installed, as I may not write to $directory";
my $fresh = objects_in($gate->observer);
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
	isnt(objects_in($session), $fresh, "version $first differs from $present");
	for my $version (@steps)
	{
		$session->query("ALTER EXTENSION admission_gate UPDATE TO '$version'");
		ok_works($session, $version);
	}
	is(objects_in($session), $fresh, "updated from $first, everything is as in a new installation");
	$gate->value('DROP DATABASE updated WITH (FORCE)');
}
ok(@paths || !-w $directory, 'there was a version to update from');
$gate->finish;
