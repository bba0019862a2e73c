//! The keywords of CQL, and which of them may be used as names.
//!
//! One table, sorted by spelling, defines all keywords. A word that is not in the table is an
//! identifier. Keywords ignore ASCII case. Two spellings may share one keyword (`TABLE` and
//! `COLUMNFAMILY`). As in ScyllaDB's grammar, some keywords may be unquoted names.

/// Where a keyword may be used as an unquoted name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Never a name.
    Reserved,
    /// Usable as the name of anything.
    Plain,
    /// A native type. Usable as any name except the name of a user type.
    Type,
    /// Usable as a name, but not as the name of a function or user type (except `key` as a user
    /// type).
    Column,
}

macro_rules! keywords {
    ($($text:literal => $name:ident $class:ident,)*) => {
        /// Every spelling with its keyword and class, sorted by spelling.
        const TABLE: &[(&str, Keyword, Class)] = &[$(($text, Keyword::$name, Class::$class),)*];
    };
}

macro_rules! keyword_enum {
    ($($name:ident)*) => {
        /// A CQL keyword.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Keyword { $($name,)* }
    };
}

keyword_enum! {
    Add Aggregate Aggregates All Allow Alter And Ann Apply As Asc Ascii Attach Attached Authorize Batch Begin Bigint
    Blob Boolean By Bypass Cache Called Cast Cluster Clustering Compact Concurrency Contains Count Counter Create
    Custom Date Decimal Default Delete Desc Describe Detach Distinct Double Drop Duration Effective Empty Entries
    Execute Exists False Filtering Finalfunc Float From Frozen Full Function Functions Grant Group Hashed If In Index
    Inet Infinity Initcond Input Insert Int Internals Into Is Json Key Keys Keyspace Keyspaces Language
    LargeDataGuardrails Level Levels Like Limit List Login Map Materialized Modify MutationFragments Nan Nologin
    Norecursive Nosuperuser Not Null Of On Only Options Or Order Partition Password Passwords Per Permission
    Permissions Primary Prune Reducefunc Rename Replace Returns Revoke Role Roles Schema ScyllaClusteringBound
    ScyllaCounterShardList ScyllaTimeuuidListIndex Select Service ServiceLevel ServiceLevels Set Sfunc Smallint Static
    Storage Stype Superuser Table Tables Text Time Timeout Timestamp Timeuuid Tinyint To Token Trigger True Truncate
    Ttl Tuple Type Types Unlogged Unset Update Use User Users Using Uuid Values Varchar Varint Vector
    VectorSearchIndexing View Where With Writetime
}

keywords! {
    "add" => Add Reserved,
    "aggregate" => Aggregate Plain,
    "aggregates" => Aggregates Plain,
    "all" => All Plain,
    "allow" => Allow Reserved,
    "alter" => Alter Reserved,
    "and" => And Reserved,
    "ann" => Ann Reserved,
    "apply" => Apply Reserved,
    "as" => As Plain,
    "asc" => Asc Reserved,
    "ascii" => Ascii Type,
    "attach" => Attach Plain,
    "attached" => Attached Plain,
    "authorize" => Authorize Reserved,
    "batch" => Batch Reserved,
    "begin" => Begin Reserved,
    "bigint" => Bigint Type,
    "blob" => Blob Type,
    "boolean" => Boolean Type,
    "by" => By Reserved,
    "bypass" => Bypass Plain,
    "cache" => Cache Plain,
    "called" => Called Plain,
    "cast" => Cast Plain,
    "cluster" => Cluster Plain,
    "clustering" => Clustering Plain,
    "columnfamilies" => Tables Plain,
    "columnfamily" => Table Reserved,
    "compact" => Compact Plain,
    "concurrency" => Concurrency Reserved,
    "contains" => Contains Plain,
    "count" => Count Column,
    "counter" => Counter Type,
    "create" => Create Reserved,
    "custom" => Custom Plain,
    "date" => Date Type,
    "decimal" => Decimal Type,
    "default" => Default Reserved,
    "delete" => Delete Reserved,
    "desc" => Desc Plain,
    "describe" => Describe Plain,
    "detach" => Detach Plain,
    "distinct" => Distinct Plain,
    "double" => Double Type,
    "drop" => Drop Reserved,
    "duration" => Duration Type,
    "effective" => Effective Plain,
    "empty" => Empty Type,
    "entries" => Entries Reserved,
    "execute" => Execute Plain,
    "exists" => Exists Plain,
    "false" => False Reserved,
    "filtering" => Filtering Plain,
    "finalfunc" => Finalfunc Plain,
    "float" => Float Type,
    "from" => From Reserved,
    "frozen" => Frozen Plain,
    "full" => Full Reserved,
    "function" => Function Plain,
    "functions" => Functions Plain,
    "grant" => Grant Reserved,
    "group" => Group Plain,
    "hashed" => Hashed Plain,
    "if" => If Reserved,
    "in" => In Reserved,
    "index" => Index Reserved,
    "inet" => Inet Type,
    "infinity" => Infinity Reserved,
    "initcond" => Initcond Plain,
    "input" => Input Plain,
    "insert" => Insert Reserved,
    "int" => Int Type,
    "internals" => Internals Plain,
    "into" => Into Reserved,
    "is" => Is Reserved,
    "json" => Json Plain,
    "key" => Key Column,
    "keys" => Keys Plain,
    "keyspace" => Keyspace Reserved,
    "keyspaces" => Keyspaces Plain,
    "language" => Language Plain,
    "large_data_guardrails" => LargeDataGuardrails Plain,
    "level" => Level Plain,
    "levels" => Levels Plain,
    "like" => Like Plain,
    "limit" => Limit Reserved,
    "list" => List Plain,
    "login" => Login Plain,
    "map" => Map Plain,
    "materialized" => Materialized Reserved,
    "modify" => Modify Reserved,
    "mutation_fragments" => MutationFragments Plain,
    "nan" => Nan Reserved,
    "nologin" => Nologin Plain,
    "norecursive" => Norecursive Reserved,
    "nosuperuser" => Nosuperuser Plain,
    "not" => Not Reserved,
    "null" => Null Reserved,
    "of" => Of Reserved,
    "on" => On Reserved,
    "only" => Only Plain,
    "options" => Options Plain,
    "or" => Or Reserved,
    "order" => Order Reserved,
    "partition" => Partition Plain,
    "password" => Password Plain,
    "passwords" => Passwords Plain,
    "per" => Per Plain,
    "permission" => Permission Plain,
    "permissions" => Permissions Plain,
    "primary" => Primary Reserved,
    "prune" => Prune Plain,
    "reducefunc" => Reducefunc Plain,
    "rename" => Rename Reserved,
    "replace" => Replace Reserved,
    "returns" => Returns Plain,
    "revoke" => Revoke Reserved,
    "role" => Role Plain,
    "roles" => Roles Plain,
    "schema" => Schema Reserved,
    "scylla_clustering_bound" => ScyllaClusteringBound Reserved,
    "scylla_counter_shard_list" => ScyllaCounterShardList Reserved,
    "scylla_timeuuid_list_index" => ScyllaTimeuuidListIndex Reserved,
    "select" => Select Reserved,
    "service" => Service Plain,
    "service_level" => ServiceLevel Plain,
    "service_levels" => ServiceLevels Plain,
    "set" => Set Reserved,
    "sfunc" => Sfunc Plain,
    "smallint" => Smallint Type,
    "static" => Static Plain,
    "storage" => Storage Plain,
    "stype" => Stype Plain,
    "superuser" => Superuser Plain,
    "table" => Table Reserved,
    "tables" => Tables Plain,
    "text" => Text Type,
    "time" => Time Type,
    "timeout" => Timeout Plain,
    "timestamp" => Timestamp Type,
    "timeuuid" => Timeuuid Type,
    "tinyint" => Tinyint Type,
    "to" => To Reserved,
    "token" => Token Reserved,
    "trigger" => Trigger Plain,
    "true" => True Reserved,
    "truncate" => Truncate Reserved,
    "ttl" => Ttl Column,
    "tuple" => Tuple Plain,
    "type" => Type Plain,
    "types" => Types Plain,
    "unlogged" => Unlogged Reserved,
    "unset" => Unset Reserved,
    "update" => Update Reserved,
    "use" => Use Reserved,
    "user" => User Plain,
    "users" => Users Plain,
    "using" => Using Reserved,
    "uuid" => Uuid Type,
    "values" => Values Plain,
    "varchar" => Varchar Type,
    "varint" => Varint Type,
    "vector" => Vector Plain,
    "vector_search_indexing" => VectorSearchIndexing Reserved,
    "view" => View Reserved,
    "where" => Where Reserved,
    "with" => With Reserved,
    "writetime" => Writetime Column,
}

/// The longest spelling in the table, in bytes: a longer word is never a keyword.
const LONGEST: usize = 26;

/// The keyword with this spelling in any ASCII case, and its class.
pub fn lookup(word: &str) -> Option<(Keyword, Class)> {
    if word.len() > LONGEST {
        return None;
    }
    let found = TABLE.binary_search_by(|(text, _, _)| text.bytes().cmp(word.bytes().map(|b| b.to_ascii_lowercase())));
    found.ok().map(|at| (TABLE[at].1, TABLE[at].2))
}

impl Keyword {
    /// The first spelling of the keyword, in lower case; for messages.
    pub fn text(self) -> &'static str {
        match self {
            Keyword::Table => "table",
            Keyword::Tables => "tables",
            other => TABLE.iter().find(|(_, k, _)| *k == other).map_or("", |(text, _, _)| text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_and_within_the_longest_length() {
        assert!(TABLE.windows(2).all(|w| w[0].0 < w[1].0), "spellings must ascend");
        assert_eq!(TABLE.iter().map(|(t, _, _)| t.len()).max(), Some(LONGEST));
    }

    #[test]
    fn lookup_ignores_case_and_knows_both_spellings() {
        assert_eq!(lookup("SeLeCt"), Some((Keyword::Select, Class::Reserved)));
        assert_eq!(lookup("columnfamily"), lookup("TABLE"));
        assert_eq!(lookup("selects"), None);
        assert_eq!(lookup(""), None);
        for (text, keyword, class) in TABLE {
            assert_eq!(lookup(&text.to_uppercase()), Some((*keyword, *class)));
        }
        assert_eq!(Keyword::Writetime.text(), "writetime");
    }
}
