//! Applying changes, step by step.

use super::super::recovery::{SNAPSHOT_PIECE, snapshot_of};
use super::super::touched::Touched;
use super::super::{ColumnDefinition, DroppedDefinition, lasting_type};
use super::*;
use crate::metadata::definition::TabletsDefinition;
use model::id::SchemaVersion;
use model::options::TableOptions;

fn table(keyspace: &str, n: u32, version: u128) -> Op {
    let column = |name: &str, kind| ColumnDefinition {
        id: model::ColumnId(0),
        name: name.into(),
        kind,
        ty: "int".into(),
        descending: false,
    };
    Op::PutTable(Box::new(TableDefinition {
        id: TableId(Uuid::from_u128(u128::from(n) + 1)),
        version: SchemaVersion(Uuid::from_u128(version)),
        keyspace: keyspace.into(),
        name: format!("t{n}"),
        columns: vec![column("k", ColumnKind::PartitionKey), column("v", ColumnKind::Regular)],
        dropped: Vec::new(),
        options: TableOptions::default(),
    }))
}

fn tablets(n: u32, host: HostId, shards: &[u16]) -> Op {
    let replicas = shards.iter().map(|shard| vec![TabletReplica { host, shard: *shard }]).collect();
    Op::PutTablets(TabletsDefinition { table: TableId(Uuid::from_u128(u128::from(n) + 1)), replicas })
}

fn keyspace(name: &str) -> Op {
    Op::PutKeyspace(KeyspaceDefinition {
        name: name.into(),
        replication: Default::default(),
        durable_writes: true,
        tablets: Default::default(),
    })
}

/// The maintained load equals a complete recount after any changes; and `Touched` lists exactly the
/// tables that a change affects.
#[test]
fn load_and_touched_tables_follow_every_change() {
    let host = HostId(Uuid::from_u128(9));
    let drop = |n: u32| Op::DropTable { keyspace: "a".into(), name: format!("t{n}") };
    let steps: Vec<Vec<Op>> = vec![
        vec![keyspace("a"), keyspace("b")],
        vec![table("a", 0, 1), tablets(0, host, &[0, 1, 1, 2])],
        vec![table("a", 1, 1), tablets(1, host, &[2, 2]), table("b", 2, 1), tablets(2, host, &[0])],
        vec![table("a", 0, 2)],
        vec![tablets(0, host, &[1, 1])],
        vec![drop(1)],
        vec![drop(0), table("a", 3, 1), tablets(3, host, &[7])],
        vec![Op::DropKeyspace("a".into()), Op::DropKeyspace("b".into())],
    ];
    let mut metadata = Metadata::empty();
    for (i, ops) in steps.into_iter().enumerate() {
        let new = Uuid::from_u128(100 + i as u128);
        let next = metadata.apply(&Change { previous: metadata.version, new, ops: ops.clone() }).unwrap();
        let mut counted = vec![0; 8];
        for table in next.tables() {
            for replica in (0..table.tablets.count()).flat_map(|tablet| table.tablets.replicas(tablet)) {
                counted[replica.shard as usize] += 1;
            }
        }
        assert_eq!(next.load(host, 8), counted, "step {i}");
        let touched = Touched::by(&metadata, &next, &ops);
        let ids = |tables: &[Rc<Table>]| tables.iter().map(|table| table.schema.id).collect::<Vec<_>>();
        let gone = metadata.tables().filter(|table| next.table_by_id(table.schema.id).is_none());
        assert_eq!(ids(&touched.dropped), gone.map(|table| table.schema.id).collect::<Vec<_>>(), "step {i}");
        let same =
            |table: &&Rc<Table>| metadata.table_by_id(table.schema.id).is_some_and(|before| Rc::ptr_eq(before, table));
        let mut put = ids(&touched.put);
        put.sort();
        let mut differ: Vec<_> = next.tables().filter(|table| !same(table)).map(|table| table.schema.id).collect();
        differ.sort();
        assert_eq!(put, differ, "step {i}");
        assert_eq!(next.table_count(), next.tables().count());
        metadata = next;
    }
    assert_eq!(metadata.table_count(), 0);
}

#[test]
fn an_epoch_outlives_changes_of_the_table_and_snapshots() {
    let (host, id) = (HostId(Uuid::from_u128(9)), TableId(Uuid::from_u128(1)));
    let mut metadata = Metadata::empty().with(&[keyspace("a"), table("a", 0, 1), tablets(0, host, &[0, 1])]).unwrap();
    let epoch = |metadata: &Metadata| metadata.table_by_id(id).expect("it is there").epoch;
    assert_eq!(epoch(&metadata), 0);
    for op in [Op::Truncate { table: id, epoch: 7 }, table("a", 0, 2), tablets(0, host, &[1, 1])] {
        metadata = metadata.with(&[op]).unwrap();
        assert_eq!(epoch(&metadata), 7);
    }
    assert_eq!(epoch(&metadata.with(&[Op::Truncate { table: id, epoch: 5 }]).unwrap()), 7, "it never goes back");
    let by_name = metadata.table("a", "t0").expect("it is there");
    assert_eq!(by_name.epoch, 7);
    assert_eq!(epoch(&Metadata::empty().with(&metadata.as_ops(|_| false)).unwrap()), 7);
    let unknown = Op::Truncate { table: TableId(Uuid::from_u128(99)), epoch: 8 };
    assert!(matches!(metadata.with(&[unknown]), Err(MetadataError::Broken(_))));
}

fn user_type(fields: &[&str]) -> Op {
    let fields = fields.iter().map(|name| (name.to_string(), "int".to_string())).collect();
    Op::PutType(TypeDefinition { keyspace: "a".into(), name: "u".into(), fields })
}

#[test]
fn a_user_type_keeps_its_identity_until_it_is_dropped() {
    let identity = Uuid::from_u128(7);
    let identify = Op::IdentifyType { keyspace: "a".into(), name: "u".into(), identity };
    let of = |metadata: &Metadata| metadata.type_identity("a", "u");
    let metadata = Metadata::empty().with(&[keyspace("a"), user_type(&["x"])]).unwrap();
    assert_eq!(of(&metadata), None, "a type of release 0.1.0");
    let metadata = metadata.with(&[identify, user_type(&["x", "y"])]).unwrap();
    assert_eq!(of(&metadata), Some(identity), "ALTER TYPE keeps it");
    assert_eq!(of(&Metadata::empty().with(&metadata.as_ops(|_| false)).unwrap()), Some(identity), "so does a snapshot");
    let drop = Op::DropType { keyspace: "a".into(), name: "u".into() };
    assert_eq!(of(&metadata.with(&[drop, user_type(&["x"])]).unwrap()), None);
}

/// Puts a user type with one field of another type.
fn holder(name: &str, ty: &str) -> Op {
    let fields = vec![("x".to_owned(), ty.to_owned())];
    Op::PutType(TypeDefinition { keyspace: "a".into(), name: name.into(), fields })
}

#[test]
fn a_change_that_no_snapshot_can_hold_is_refused() {
    let before = [keyspace("a"), holder("u", "int"), holder("v", "frozen<u>"), holder("w", "frozen<list<frozen<v>>>")];
    let metadata = Metadata::empty().with(&before).unwrap();
    assert_eq!(metadata.check_restorable(&before), Ok(()));
    let drop = |name: &str| Op::DropType { keyspace: "a".into(), name: name.into() };
    for ops in [
        vec![holder("u", "frozen<u>")],
        vec![holder("u", "tuple<int, frozen<v>>")],
        vec![holder("u", "frozen<map<int, frozen<w>>>"), holder("v", "frozen<u>"), holder("w", "frozen<v>")],
        vec![drop("u")],
        vec![drop("v")],
    ] {
        let after = metadata.with(&ops).expect("each operation fits");
        assert!(Metadata::empty().with(&after.as_ops(|_| false)).is_err(), "{ops:?}");
        let refused = after.check_restorable(&ops);
        assert!(matches!(refused, Err(MetadataError::Unrestorable(_))), "{ops:?}: {refused:?}");
    }
    for ops in [vec![holder("u", "text"), holder("v", "frozen<u>")], vec![drop("w"), drop("v")], vec![table("a", 0, 1)]]
    {
        assert_eq!(metadata.with(&ops).expect("each operation fits").check_restorable(&ops), Ok(()), "{ops:?}");
    }
}

#[test]
fn retired_ids_outlive_the_keyspace_and_a_snapshot() {
    let salt = Uuid::from_u128(7);
    let retire = Op::RetireIds { keyspace: "a".into(), table: "t0".into(), salt };
    let metadata = Metadata::empty().with(&[keyspace("a"), Op::DropKeyspace("a".into()), retire]).unwrap();
    let metadata = Metadata::empty().with(&metadata.as_ops(|_| false)).unwrap();
    assert_eq!((metadata.id_salt("a", "t0"), metadata.id_salt("a", "t1")), (Some(salt), None));
}

#[test]
fn a_dropped_column_has_the_type_that_it_had() {
    let dropped = |ty: String| {
        let mut op = table("a", 0, 1);
        let Op::PutTable(definition) = &mut op else { unreachable!() };
        let (name, kind) = ("gone".to_owned(), ColumnKind::Regular);
        definition.dropped.push(DroppedDefinition { id: model::ColumnId(1), name, kind, ty, drop_time: 1 });
        op
    };
    let type_of = |metadata: &Metadata| metadata.table("a", "t0").expect("it is there").schema.dropped[0].ty.clone();
    let metadata = Metadata::empty().with(&[keyspace("a"), user_type(&["x", "y"])]).unwrap();
    for text in
        ["u", "frozen<u>", "list<frozen<u>>", "tuple<int, frozen<u>>", "map<frozen<u>, int>", "vector<frozen<u>, 2>"]
    {
        let before = metadata.parse_type("a", text).unwrap().freeze_nested();
        let written = lasting_type(&before);
        let drop = Op::DropType { keyspace: "a".into(), name: "u".into() };
        let again = metadata.with(&[dropped(written), drop, user_type(&["z"]), table("a", 1, 1)]).unwrap();
        assert_eq!(type_of(&again), before, "{text}");
        let restored = Metadata::empty().with(&again.as_ops(|_| false)).unwrap();
        assert_eq!(type_of(&restored), before, "{text}");
        // Release 0.1.0 stored the name: it refers to the current type of that name, or to none.
        let by_name = again.with(&[dropped(text.to_owned())]).unwrap();
        assert_eq!(type_of(&by_name).freeze_nested(), again.parse_type("a", text).unwrap().freeze_nested());
        let gone = Op::DropType { keyspace: "a".into(), name: "u".into() };
        assert_eq!(type_of(&again.with(&[gone, dropped(text.to_owned())]).unwrap()), CqlType::Blob);
    }
    let shown = |ty: &str| lasting_type(&metadata.parse_type("a", ty).unwrap());
    assert_eq!(shown("frozen<list<int>>"), "frozen<list<int>>", "as release 0.1.0 writes it");
    assert_eq!(shown("u"), "'UserType(a,75,78:Int32Type,79:Int32Type)'");
}

/// A snapshot is encoded in pieces, and has the bytes of the list of operations.
#[test]
fn a_snapshot_is_the_list_of_operations() {
    rt::block_on(async {
        for count in [0, 3, 1500] {
            let host = HostId(Uuid::from_u128(9));
            let mut ops = vec![keyspace("a"), keyspace("b"), Op::Fence(3)];
            for n in 0..count {
                ops.extend([table(["a", "b"][n as usize % 2], n, 1), tablets(n, host, &[0, 1])]);
            }
            let metadata = Rc::new(Metadata::empty().with(&ops).unwrap());
            let whole = super::super::encode(&(metadata.number, metadata.version, metadata.as_ops(|_| false)));
            assert!(count < 1500 || whole.len() > 2 * SNAPSHOT_PIECE, "several pieces: {}", whole.len());
            assert!(snapshot_of(metadata).await == whole, "{count} tables");
        }
    });
}
