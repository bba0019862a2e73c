//! Prepared statements, bound values and protocol batches, end to end in one process.

use crate::support::statements::{INT, TEXT, execute, int, markers, params, prepare, rows, text};
use crate::support::{CLUSTER, bound, show_rows, values, with_node};
use bytes::Bytes;
use cql::api::{Batch, BatchKind, BatchStatement, BoundValue, BoundValues};
use cql::dialect::Dialect;
use cql::{Error, QueryParams};
use model::CqlType;
use model::types::Value;

#[test]
fn a_prepared_statement_takes_values_by_place_and_by_name() {
    with_node("prepared", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c text, v int, PRIMARY KEY (p, c))").await;
        let insert = prepare(&session, "INSERT INTO t (c, v, p) VALUES (?, ?, ?)").await;
        assert_eq!(markers(&insert), ["c text", "v int", "p int"]);
        assert_eq!(insert.partition_key_markers, [2]);
        assert!(insert.result.columns.is_empty());
        execute(&session, &insert, values(&[text("a"), int(1), int(7)])).await.unwrap();
        let named = vec![
            ("p".to_owned(), bound(INT, &Value::Int(7))),
            ("v".to_owned(), bound(INT, &Value::Int(2))),
            ("c".to_owned(), bound(TEXT, &Value::Text("b".into()))),
        ];
        execute(&session, &insert, BoundValues::Named(named)).await.unwrap();

        let select = prepare(&session, "SELECT c, v FROM t WHERE p = :key AND c > :low LIMIT :n").await;
        assert_eq!(markers(&select), ["key int", "low text", "n int"]);
        let found = rows(execute(&session, &select, values(&[int(7), text(""), int(10)])).await);
        assert_eq!(show_rows(&found), ["c='a', v=1", "c='b', v=2"]);
        let found = rows(execute(&session, &select, values(&[int(7), text("a"), int(10)])).await);
        assert_eq!(show_rows(&found), ["c='b', v=2"]);

        let wrong = execute(&session, &select, values(&[int(7)])).await.unwrap_err();
        assert_eq!(wrong, Error::Invalid("Invalid amount of bind variables: expected 3 received 1".into()));
        let bad = BoundValues::Positional(vec![BoundValue::Value(Bytes::from_static(b"xyz")); 3].into());
        let wrong = execute(&session, &select, bad).await.unwrap_err();
        assert!(wrong.to_string().starts_with("Exception while binding column "), "{wrong}");
        let unknown = session.processor.execute(&session.client, &[0; 16], &QueryParams::default()).await;
        assert_eq!(unknown.unwrap_err(), Error::Unprepared([0; 16]));
    });
}

#[test]
fn markers_of_one_name_are_one_variable() {
    with_node("names", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a int, b text)").await;
        let both = prepare(&session, "UPDATE t SET a = :x WHERE p = :x").await;
        assert_eq!(markers(&both), ["x int"]);
        execute(&session, &both, values(&[int(5)])).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=5, a=5, b=null"]);
        let clash = session.processor.prepare(&session.client, "UPDATE t SET b = :x WHERE p = :x", None).await;
        assert_eq!(clash.unwrap_err().to_string(), "variable :x has type text which doesn't match int");
    });
}

#[test]
fn markers_of_one_name_can_be_separate_variables() {
    with_node("apart", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a int, b text)").await;
        let text = "SELECT a FROM t WHERE p = :x AND a = :x ALLOW FILTERING";
        let one = prepare(&session, text).await;
        let config = (*session.processor.config()).clone();
        let dialect = Dialect { names_are_one: false, ..Dialect::default() };
        session.processor.set_config(cql::Config { dialect, ..config.clone() });
        let both = prepare(&session, "UPDATE t SET a = :x, b = :y WHERE p = :x").await;
        assert_eq!(markers(&both), ["x int", "y text", "x int"]);
        execute(&session, &both, values(&[int(1), (TEXT, Value::Text("b".into())), int(2)])).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=2, a=1, b='b'"]);
        let named =
            vec![("x".to_owned(), bound(INT, &Value::Int(7))), ("y".to_owned(), bound(TEXT, &Value::Text("c".into())))];
        execute(&session, &both, BoundValues::Named(named)).await.unwrap();
        assert_eq!(session.rows("SELECT p, a FROM t WHERE p = 7").await, ["p=7, a=7"]);
        let given = params(values(&[int(7), int(7)]));
        let found = session.processor.query(&session.client, text, &given).await;
        assert_eq!(rows(found).count, 1, "as text it is planned again");
        assert_eq!(markers(&one), ["x int"]);
        assert_eq!(rows(execute(&session, &one, values(&[int(7)])).await).count, 1, "as it was prepared");
        assert_eq!(
            markers(&prepare(&session, text).await),
            ["x int", "x int"],
            "prepared again it is another statement"
        );
        session.processor.set_config(config);
        let found = session.processor.query(&session.client, text, &params(values(&[int(7)]))).await;
        assert_eq!(rows(found).count, 1);
    });
}

#[test]
fn the_marker_of_in_is_named_as_the_operator_wants() {
    with_node("in_names", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, \"C\" int, PRIMARY KEY (p, \"C\"))").await;
        let text = "SELECT * FROM t WHERE p IN ? AND \"C\" NOT IN ? ALLOW FILTERING";
        let names = async || markers(&prepare(&session, text).await);
        assert_eq!(names().await, ["IN(p) frozen<list<int>>", "NOT IN(C) frozen<list<int>>"]);
        let config = (*session.processor.config()).clone();
        let dialect = Dialect { in_is_upper: false, ..Dialect::default() };
        session.processor.set_config(cql::Config { dialect, ..config.clone() });
        assert_eq!(names().await, ["in(p) frozen<list<int>>", "not in(C) frozen<list<int>>"]);
        session.processor.set_config(config);
        assert_eq!(names().await, ["IN(p) frozen<list<int>>", "NOT IN(C) frozen<list<int>>"]);
    });
}

#[test]
fn markers_are_named_after_what_they_stand_for() {
    with_node("marker_names", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, d int, l list<int>, m map<text, int>, PRIMARY KEY (p, c, d))").await;
        for (statement, expected) in [
            ("SELECT * FROM t WHERE p IN ?", vec!["IN(p) frozen<list<int>>"]),
            ("SELECT * FROM t WHERE p IN (?, ?)", vec!["IN(p) int", "IN(p) int"]),
            ("SELECT * FROM t WHERE token(p) > ? AND token(p) <= ?", vec!["partition key token bigint"; 2]),
            ("SELECT * FROM t WHERE p = 1 AND (c, d) > ?", vec!["(c, d) frozen<tuple<int, int>>"]),
            ("SELECT * FROM t WHERE p = 1 AND (c, d) > (?, ?)", vec!["c int", "d int"]),
            ("SELECT * FROM t WHERE p = 1 AND (c, d) IN ?", vec!["IN((c, d)) frozen<list<frozen<tuple<int, int>>>>"]),
            ("SELECT * FROM t PER PARTITION LIMIT ? LIMIT ?", vec!["[per_partition_limit] int", "[limit] int"]),
            (
                "UPDATE t USING TTL ? AND TIMESTAMP ? SET l[?] = ?, m[?] = ? WHERE p = ? AND c = ? AND d = ?",
                vec![
                    "[ttl] int",
                    "[timestamp] bigint",
                    "idx(l) int",
                    "value(l) int",
                    "key(m) text",
                    "value(m) int",
                    "p int",
                    "c int",
                    "d int",
                ],
            ),
        ] {
            let prepared = prepare(&session, statement).await;
            assert_eq!(markers(&prepared), expected, "{statement}");
        }
        session.ok("INSERT INTO t (p, c, d) VALUES (1, 2, 3)").await;
        let tuples = prepare(&session, "SELECT d FROM t WHERE p = 1 AND (c, d) IN ?").await;
        let ty = tuples.markers.columns[0].ty.clone();
        let pair = |c, d| Value::Tuple(vec![Value::Int(c), Value::Int(d)]);
        let list = Value::List(vec![pair(9, 9), pair(2, 3)]);
        let found = rows(execute(&session, &tuples, values(&[(&ty, list)])).await);
        assert_eq!(show_rows(&found), ["d=3"]);
        let above = prepare(&session, "SELECT d FROM t WHERE p = 1 AND (c, d) > ?").await;
        let ty = above.markers.columns[0].ty.clone();
        assert_eq!(rows(execute(&session, &above, values(&[(&ty, pair(2, 2))])).await).count, 1);
        assert_eq!(rows(execute(&session, &above, values(&[(&ty, pair(2, 3))])).await).count, 0);
    });
}

#[test]
fn unset_leaves_columns_alone_and_is_refused_elsewhere() {
    with_node("unset", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a int, l list<int>)").await;
        session.ok("INSERT INTO t (p, a, l) VALUES (1, 1, [1])").await;
        let insert = prepare(&session, "INSERT INTO t (p, a, l) VALUES (?, ?, ?) USING TTL ?").await;
        let one = bound(INT, &Value::Int(1));
        let set = |list: [BoundValue; 4]| BoundValues::Positional(list.into_iter().collect());
        let unset = || BoundValue::Unset;
        execute(&session, &insert, set([one.clone(), unset(), unset(), unset()])).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=1, a=1, l=[1]"]);
        let refused = execute(&session, &insert, set([unset(), unset(), unset(), unset()])).await.unwrap_err();
        assert!(refused.to_string().contains("unset"), "{refused}");
        execute(&session, &insert, set([one.clone(), BoundValue::Null, BoundValue::Null, unset()])).await.unwrap();
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=1, a=null, l=null"]);
        let select = prepare(&session, "SELECT p FROM t WHERE p = ? LIMIT ?").await;
        let found = execute(&session, &select, BoundValues::Positional([one, unset()].into_iter().collect())).await;
        assert_eq!(rows(found).count, 1);
        let refused =
            execute(&session, &select, BoundValues::Positional([unset(), unset()].into_iter().collect())).await;
        assert!(refused.unwrap_err().to_string().contains("unset"));
    });
}

#[test]
fn prepared_statements_keep_their_keyspace() {
    with_node("keyspaces", |session| async move {
        session.use_keyspace("one").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        let insert = prepare(&session, "INSERT INTO t (p) VALUES (?)").await;
        session.use_keyspace("two").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        let other = prepare(&session, "INSERT INTO t (p) VALUES (?)").await;
        assert_ne!(insert.id, other.id);
        execute(&session, &insert, values(&[int(1)])).await.unwrap();
        execute(&session, &other, values(&[int(2)])).await.unwrap();
        assert_eq!(session.rows("SELECT p FROM one.t").await, ["p=1"]);
        assert_eq!(session.rows("SELECT p FROM t").await, ["p=2"]);
    });
}

#[test]
fn protocol_batches_merge_and_warn() {
    with_node("batches", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v text, PRIMARY KEY (p, c))").await;
        let insert = prepare(&session, "INSERT INTO t (p, c, v) VALUES (?, ?, ?)").await;
        let batch = |statements| Batch { kind: BatchKind::Unlogged, statements, params: QueryParams::default() };
        let statements = vec![
            BatchStatement::Prepared(insert.id, values(&[int(1), int(1), text("a")])),
            BatchStatement::Prepared(insert.id, values(&[int(1), int(2), text("b")])),
            BatchStatement::Query("INSERT INTO t (p, c, v) VALUES (?, 3, 'c')".into(), values(&[int(2)])),
        ];
        let answer = session.processor.batch(&session.client, &batch(statements)).await.unwrap();
        assert!(answer.warnings.is_empty());
        assert_eq!(session.rows("SELECT * FROM t").await, ["p=1, c=1, v='a'", "p=1, c=2, v='b'", "p=2, c=3, v='c'"]);

        let of_size = |bytes: usize, partitions: i32| {
            let one = |p| BatchStatement::Prepared(insert.id, values(&[int(p), int(0), text(&"x".repeat(bytes))]));
            batch((0..partitions).map(one).collect())
        };
        let answer = session.processor.batch(&session.client, &of_size(100 << 10, 2)).await.unwrap();
        assert_eq!(answer.warnings.len(), 1);
        assert!(answer.warnings[0].starts_with("Batch modifying 2 partitions in ks.t is of size "));
        let answer = session.processor.batch(&session.client, &of_size(200 << 10, 1)).await.unwrap();
        assert!(answer.warnings.is_empty(), "one partition may be of any size");
        let refused = session.processor.batch(&session.client, &of_size(600 << 10, 2)).await.unwrap_err();
        assert_eq!(refused, Error::Invalid("Batch too large".into()));
        let select = BatchStatement::Query("SELECT * FROM t".into(), BoundValues::default());
        let refused = session.processor.batch(&session.client, &batch(vec![select])).await.unwrap_err();
        assert!(refused.to_string().contains("only UPDATE, INSERT and DELETE"), "{refused}");
        let unknown = BatchStatement::Prepared([3; 16], BoundValues::default());
        let refused = session.processor.batch(&session.client, &batch(vec![unknown])).await.unwrap_err();
        assert_eq!(refused, Error::Unprepared([3; 16]));
    });
}

#[test]
fn the_timestamp_of_a_dropped_column_can_be_bound() {
    with_node("prepared-drop", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
        session.ok("INSERT INTO t (p, v) VALUES (1, 1) USING TIMESTAMP 100").await;
        session.ok("INSERT INTO t (p, v) VALUES (2, 2) USING TIMESTAMP 300").await;
        let drop = prepare(&session, "ALTER TABLE t DROP v USING TIMESTAMP ?").await;
        assert_eq!(markers(&drop), ["[timestamp] bigint"]);
        let null = execute(&session, &drop, BoundValues::Positional(vec![BoundValue::Null].into())).await;
        assert!(null.unwrap_err().to_string().contains("null value of timestamp"));
        execute(&session, &drop, values(&[(&CqlType::Bigint, Value::Bigint(200))])).await.unwrap();
        session.ok("ALTER TABLE t ADD v int").await;
        assert_eq!(session.rows("SELECT p, v FROM t").await, ["p=1, v=null", "p=2, v=2"]);
        // An unset timestamp is like none: all existing values are dropped.
        execute(&session, &drop, BoundValues::Positional(vec![BoundValue::Unset].into())).await.unwrap();
        session.ok("ALTER TABLE t ADD v int").await;
        assert_eq!(session.rows("SELECT p, v FROM t").await, ["p=1, v=null", "p=2, v=null"]);
    });
}

#[test]
fn a_prepared_statement_acts_in_the_keyspace_in_which_it_was_prepared() {
    with_node("prepared-elsewhere", |session| async move {
        for keyspace in ["a", "b"] {
            session.use_keyspace(keyspace).await;
            session.ok("CREATE TYPE u (x int)").await;
            session.ok("CREATE TABLE t (p int PRIMARY KEY, v int)").await;
            session.ok("INSERT INTO t (p, v) VALUES (1, 1)").await;
        }
        let elsewhere = async |text: &str| {
            session.ok("USE a").await;
            let statement = prepare(&session, text).await;
            session.ok("USE b").await;
            execute(&session, &statement, values(&[])).await.unwrap_or_else(|error| panic!("{text}: {error}"))
        };
        elsewhere("TRUNCATE t").await;
        assert_eq!(session.rows("SELECT v FROM a.t").await, [""; 0]);
        assert_eq!(session.rows("SELECT v FROM b.t").await, ["v=1"]);
        elsewhere("ALTER TABLE t ADD w int").await;
        elsewhere("ALTER TYPE u ADD y int").await;
        elsewhere("CREATE TABLE made (p int PRIMARY KEY, v frozen<u>)").await;
        elsewhere("CREATE TYPE made (x int)").await;
        let schema = |keyspace: &str| {
            let metadata = CLUSTER.metadata.get().current();
            let keyspace = metadata.keyspace(keyspace).expect("it is there");
            let tables: Vec<String> = keyspace
                .tables
                .values()
                .map(|table| format!("{} of {} columns", table.schema.name, table.schema.all_columns().count()))
                .collect();
            let types = keyspace.types.values().map(|ty| format!("{} of {} fields", ty.name, ty.fields.len()));
            (tables, types.collect::<Vec<String>>())
        };
        let (tables, types) = schema("a");
        assert_eq!(tables, ["made of 2 columns", "t of 3 columns"]);
        assert_eq!(types, ["made of 1 fields", "u of 2 fields"]);
        let of_b = (vec!["t of 2 columns".to_owned()], vec!["u of 1 fields".to_owned()]);
        assert_eq!(schema("b"), of_b);
        let described = show_rows(&rows(Ok(elsewhere("DESCRIBE TABLES").await)));
        assert_eq!(
            described,
            ["keyspace_name='a', type='table', name='made'", "keyspace_name='a', type='table', name='t'"]
        );
        let described = show_rows(&rows(Ok(elsewhere("DESCRIBE TYPE u").await)));
        assert!(described[0].contains("CREATE TYPE a.u"), "{described:?}");
        elsewhere("DROP TABLE made").await;
        elsewhere("DROP TYPE made").await;
        elsewhere("DROP TABLE t").await;
        elsewhere("DROP TYPE u").await;
        assert_eq!(schema("a"), (Vec::new(), Vec::new()));
        assert_eq!(schema("b"), of_b);
        // Statements that are not prepared follow the session.
        session.ok("TRUNCATE t").await;
        assert_eq!(session.rows("SELECT v FROM b.t").await, [""; 0]);
        let homeless = session.another();
        for text in ["TRUNCATE t", "DROP TABLE IF EXISTS t", "CREATE TYPE u (x int)"] {
            let refused = session.processor.prepare(&homeless.client, text, None).await.unwrap_err();
            assert!(refused.to_string().starts_with("No keyspace has been specified"), "{text}: {refused}");
        }
    });
}
