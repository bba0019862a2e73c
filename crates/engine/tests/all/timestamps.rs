//! The greatest timestamp that was ever written: a node's clock continues from it after a
//! restart.

use crate::support::*;
use model::mutation::MutationBuilder;
use model::row::{Cell, Marker, RowBuilder};
use model::schema::DroppedColumn;
use model::time::Tombstone;
use model::{SchemaVersion, TableSchema};
use std::rc::Rc;

/// The schema after its only regular column was dropped.
fn without_values(old: &TableSchema) -> Rc<TableSchema> {
    let gone = |column: &model::Column| DroppedColumn {
        id: column.id,
        name: column.name.clone(),
        kind: column.kind,
        ty: column.ty.clone(),
        drop_time: 1000,
    };
    Rc::new(TableSchema::new(
        old.id,
        SchemaVersion(uuid::Uuid::from_u128(0x9999)),
        old.keyspace.clone(),
        old.name.clone(),
        old.partition_key.clone(),
        old.clustering.clone(),
        old.statics.clone(),
        Vec::new(),
        old.regulars.iter().map(gone).collect(),
        old.options.clone(),
    ))
}

async fn write(engine: &engine::Engine, schema: &Rc<TableSchema>, marker: Option<Marker>, timestamp: i64) {
    let value = schema.regulars[0].id;
    let mut row = RowBuilder::new(marker, Tombstone::LIVE);
    row.push(&Cell::live(value, timestamp, b"value"));
    let mut builder = MutationBuilder::new(schema.id, schema.version, &1i32.to_be_bytes());
    builder.row(clustering(0), row.finish());
    engine.apply_durably(&builder.finish(schema), &key(1)).await.unwrap();
}

#[test]
fn the_greatest_timestamp_is_one_that_was_written() {
    rt::block_on(async {
        let scratch = Scratch::new("timestamps");
        let schema = schema(864_000, |_| {});
        let reopened = async |schema: &Rc<TableSchema>| {
            let engine = open(config(&scratch, 16 << 20), schema, &tablets(1)).await;
            let seen = engine.max_timestamp_seen();
            engine.stop().await;
            seen
        };
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema, Some(Marker::new(500)), 500).await;
        engine.flush(None).await.unwrap();
        engine.stop().await;
        assert_eq!(reopened(&schema).await, 500);

        // A memtable of which nothing is left gives a file without any timestamp, whose statistics
        // span all of them.
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        let next = without_values(&schema);
        engine.update_schema(next.clone());
        // A writer that has not heard of the drop yet.
        write(&engine, &schema, None, 600).await;
        engine.flush(None).await.unwrap();
        engine.stop().await;
        assert_eq!(reopened(&next).await, 500);

        // Nanoseconds, by mistake.
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema, None, 1_767_225_600_000_000_000).await;
        engine.flush(None).await.unwrap();
        engine.stop().await;
        assert_eq!(reopened(&schema).await, 500);
    });
}
