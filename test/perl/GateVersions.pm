#
# Versions of the extension: one that is made up, to have something to update from
# before there is a second, and what there is to compare of two.
#
package GateVersions;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(make_up_version objects_in);

my @made_up;
END { unlink @made_up; }

sub _script
{
	my ($directory, @versions) = @_;
	return "$directory/admission_gate--" . join('--', @versions) . '.sql';
}

# Writes two scripts: of a version before the present one, and to update it.  It
# lacks the last column of one view and its function, and another function.  Returns
# its name; the scripts are removed when the test ends.
sub make_up_version
{
	my ($directory, $present) = @_;
	my $version = '0.made_up';
	my $column =
	  qr/,\s*OUT \w+ \w+(?=\s*\)\s*RETURNS SETOF record\s+AS 'MODULE_PATHNAME'(?:, 'pg_stat_get_admission_gate')?\s)/;
	my $with_column = qr/\bpg_stat_(?:get_)?admission_gate\b/;
	my $missing = qr/\bpg_stat_admission_gate_reset\b/;

	my @statements = map { "$_;\n" } split /;\n/, slurp_file(_script($directory, $present));
	my @same = grep { !/$with_column/ && !/$missing/ } @statements;
	my @changed = grep { /$with_column/ } @statements;
	my @added = grep { /$missing/ } @statements;
	my @before = @changed;
	die "no version can be made up of $present\n" if 1 != grep { s/$column// } @before;

	push @made_up, _script($directory, $version), _script($directory, $version, $present);
	append_to_file($made_up[-2], join '', @before, @same);
	append_to_file($made_up[-1], join '',
		"DROP VIEW pg_stat_admission_gate;\nDROP FUNCTION pg_stat_get_admission_gate();\n",
		@changed, @added);
	return $version;
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
sub objects_in
{
	my ($session) = @_;
	return [ sort split /\n/, $session->query($objects) ];
}

1;
