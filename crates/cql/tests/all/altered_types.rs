//! A column whose type was altered: values in sstables are read as values in memtables are.

use crate::support::{CLUSTER, Session, with_node};

/// Types of a column before and after an accepted ALTER, with a value of the first one.
const ALTERS: [(&str, &str, &str); 18] = [
    ("ascii", "text", "'a'"),
    ("text", "blob", "'a'"),
    ("timeuuid", "uuid", "50554d6e-29bb-11e5-b345-feff819cdc9f"),
    ("bigint", "timestamp", "42"),
    ("tuple<int>", "tuple<int, text>", "(42)"),
    ("tuple<int, ascii>", "tuple<int, text, int>", "(42, 'a')"),
    ("tuple<int>", "tuple<varint>", "(42)"),
    ("tuple<tuple<int>, int>", "tuple<tuple<int, int>, int>", "((1), 2)"),
    ("list<frozen<tuple<int>>>", "list<frozen<tuple<int, text>>>", "[(42), (43)]"),
    ("set<frozen<tuple<int>>>", "set<frozen<tuple<int, text>>>", "{(42), (43)}"),
    ("map<frozen<tuple<int>>, int>", "map<frozen<tuple<int, text>>, int>", "{(42): 1}"),
    ("map<int, frozen<tuple<int>>>", "map<int, frozen<tuple<int, text>>>", "{1: (42)}"),
    ("frozen<list<tuple<int>>>", "frozen<list<tuple<int, text>>>", "[(42), (43)]"),
    ("frozen<list<int>>", "frozen<list<varint>>", "[42, 43]"),
    ("frozen<map<int, int>>", "frozen<map<int, blob>>", "{1: 2}"),
    ("frozen<set<ascii>>", "frozen<set<text>>", "{'a', 'b'}"),
    ("frozen<map<int, tuple<int>>>", "frozen<map<int, tuple<int, int>>>", "{1: (2)}"),
    ("list<ascii>", "list<text>", "['a', 'b']"),
];

async fn flush(table: &str) {
    let metadata = CLUSTER.metadata.get().current();
    let id = metadata.table("ks", table).expect("it was made").schema.id;
    cluster::flush::flush(CLUSTER.engine, id).await.unwrap_or_else(|error| panic!("{table}: {error}"));
}

/// Fills the columns `s` and `v` of partitions 1 and 2. Only the first one is in an sstable.
async fn fill(session: &Session, table: &str, value: &str) {
    for p in [1, 2] {
        session
            .ok(&format!("INSERT INTO {table} (p, c, s, v, other) VALUES ({p}, 1, {value}, {value}, 'precious')"))
            .await;
        if p == 1 {
            flush(table).await;
        }
    }
}

/// Both partitions have the same values, not null. They keep them after a flush.
async fn is_filled(session: &Session, table: &str, what: &str) {
    let read = async |p: i32| session.rows(&format!("SELECT s, v, other FROM {table} WHERE p = {p}")).await;
    let expected = read(2).await;
    assert!(expected.len() == 1 && !expected[0].contains("=null"), "{what}: {expected:?}");
    assert_eq!(read(1).await, expected, "{what}, from the sstable");
    flush(table).await;
    assert_eq!((read(1).await, read(2).await), (expected.clone(), expected), "{what}, from two sstables");
}

#[test]
fn values_written_before_an_alter_are_read_after_it() {
    with_node("altered", |session| async move {
        session.use_keyspace("ks").await;
        for (n, (before, after, value)) in ALTERS.iter().enumerate() {
            for is_again in [false, true] {
                let table = format!("t{n}_{is_again}");
                let columns = format!("p int, c int, s {before} static, v {before}, other text");
                session.ok(&format!("CREATE TABLE {table} ({columns}, PRIMARY KEY (p, c))")).await;
                if is_again {
                    // Cells that are newer than the drop belong to the new column of the name.
                    session.ok(&format!("ALTER TABLE {table} DROP (s, v)")).await;
                    session.ok(&format!("ALTER TABLE {table} ADD (s {before} static, v {before})")).await;
                }
                fill(&session, &table, value).await;
                for column in ["s", "v"] {
                    session.ok(&format!("ALTER TABLE {table} ALTER {column} TYPE {after}")).await;
                }
                is_filled(&session, &table, &format!("{before} to {after}, added again: {is_again}")).await;
            }
        }
    });
}

#[test]
fn values_of_a_user_type_are_read_after_its_fields_changed() {
    let alters = [("frozen<tuple<int>>", "frozen<tuple<int, text>>", "(42)"), ("ascii", "text", "'a'")];
    with_node("altered-user-types", |session| async move {
        session.use_keyspace("ks").await;
        for (n, (before, after, value)) in alters.iter().enumerate() {
            let forms = ["u", "frozen<u>", "list<frozen<u>>", "map<frozen<u>, int>", "tuple<frozen<u>>"];
            for (m, form) in forms.iter().enumerate() {
                let (ud, table) = (format!("u{n}_{m}"), format!("t{n}_{m}"));
                session.ok(&format!("CREATE TYPE {ud} (f {before})")).await;
                let ty = form.replace("<u>", &format!("<{ud}>"));
                let ty = if ty == "u" { ud.clone() } else { ty };
                let columns = format!("p int, c int, s {ty} static, v {ty}, other text");
                session.ok(&format!("CREATE TABLE {table} ({columns}, PRIMARY KEY (p, c))")).await;
                let literal = format!("{{f: {value}}}");
                let literal = match *form {
                    "list<frozen<u>>" => format!("[{literal}]"),
                    "map<frozen<u>, int>" => format!("{{{literal}: 1}}"),
                    "tuple<frozen<u>>" => format!("({literal})"),
                    _ => literal,
                };
                fill(&session, &table, &literal).await;
                session.ok(&format!("ALTER TYPE {ud} ALTER f TYPE {after}")).await;
                session.ok(&format!("ALTER TYPE {ud} ADD g int")).await;
                is_filled(&session, &table, &format!("{form} of {before}, then {after}")).await;
            }
        }
    });
}
