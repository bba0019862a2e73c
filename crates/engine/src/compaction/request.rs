//! The compactions that administrators start. Major compaction merges everything. Cleanup drops
//! data that the shard does not own any more.
//!
//! Compactions of one table run one after the other. TRUNCATE, DROP TABLE and a tablet that leaves
//! stop them. When the data is removed, they make a new plan from the remaining sstables.

use super::controller::candidates;
use super::options::Options;
use super::picker::pick_all;
use super::progress::CompactionKind;
use super::task::{Claimed, Plan};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::{Attached, Table, Tablet};
use model::TableId;
use std::rc::Rc;

impl Engine {
    /// Flushes a table, and merges the sstables of each of its tablets as far as its strategy
    /// allows. The result is one sstable, one level, or one sstable for each time window.
    pub async fn compact_major(&self, table: TableId) -> Result<(), EngineError> {
        let table = self.table_or_error(table)?;
        self.detached(|engine| async move { engine.compact_all_tablets(&table).await }).await
    }

    /// No tombstone may be purged before the old commitlogs are removed: replay would restore the
    /// data that the purged tombstone covered.
    fn check_started(&self) -> Result<(), EngineError> {
        if self.is_started() { Ok(()) } else { Err(EngineError::OldLogsNeeded) }
    }

    async fn compact_all_tablets(&self, table: &Rc<Table>) -> Result<(), EngineError> {
        self.check_started()?;
        self.flush(Some(table.schema().id)).await?;
        let _turn = table.requested_turn.acquire().await.map_err(|_| EngineError::Cancelled)?;
        let _paused = table.pause_compactions();
        table.stop_compactions().await;
        for tablet in table.tablets().iter() {
            while table.serves(tablet)
                && let Err(error) = self.compact_tablet(table, tablet).await
            {
                self.wait_for_removal(table, tablet, error).await?;
            }
        }
        Ok(())
    }

    /// Merges the sstables of a tablet as its strategy allows.
    async fn compact_tablet(&self, table: &Rc<Table>, tablet: &Rc<Tablet>) -> Result<(), EngineError> {
        let schema = table.schema();
        let (sstables, candidates) = candidates(tablet, &schema, rt::time::wall_seconds());
        let picks = pick_all(&candidates, &Options::of(&schema.options.compaction));
        // All inputs are claimed before the first compaction begins, so that no other compaction
        // takes one.
        let plans: Vec<Plan> = picks
            .into_iter()
            .map(|pick| Plan {
                kind: CompactionKind::Compaction,
                inputs: Claimed::new(pick.inputs.into_iter().map(|i| sstables[i].clone()).collect()),
                level: pick.level,
                split: pick.split,
                moves: false,
                expired: false,
            })
            .collect();
        for plan in plans {
            self.compact(table, tablet, &plan, &tablet.compactions.cancel()).await?;
        }
        Ok(())
    }

    /// Waits until a compaction that was stopped by the removal of data may be planned again.
    ///
    /// # Errors
    ///
    /// `error`, if the compaction failed for another reason.
    async fn wait_for_removal(&self, table: &Table, tablet: &Tablet, error: EngineError) -> Result<(), EngineError> {
        let ends = || self.stopping().is_cancelled() || table.work.is_closed();
        if !matches!(error, EngineError::Cancelled) || ends() {
            return Err(error);
        }
        table.compactions_allowed(tablet).await;
        if ends() { Err(error) } else { Ok(()) }
    }

    /// Rewrites the sstables of a table that hold keys outside of their tablet, without those keys.
    /// Returns how many were rewritten.
    pub async fn cleanup(&self, table: TableId) -> Result<usize, EngineError> {
        let table = self.table_or_error(table)?;
        self.detached(|engine| async move { engine.clean_up(&table).await }).await
    }

    async fn clean_up(&self, table: &Rc<Table>) -> Result<usize, EngineError> {
        self.check_started()?;
        let is_foreign = |tablet: &Tablet, own: &Attached| {
            [own.sstable.first_key(), own.sstable.last_key()].iter().any(|key| !tablet.range.contains(key))
        };
        let next = |tablet: &Rc<Tablet>| {
            let set = table.serves(tablet).then(|| tablet.sstables())?;
            set.iter().find(|own| own.is_free() && is_foreign(tablet, own)).cloned()
        };
        let mut cleaned = 0;
        for tablet in table.tablets().iter() {
            if !tablet.sstables().iter().any(|own| is_foreign(tablet, own)) {
                continue;
            }
            let _turn = table.requested_turn.acquire().await.map_err(|_| EngineError::Cancelled)?;
            let _paused = table.pause_compactions();
            table.stop_compactions().await;
            // The set may have changed after each step.
            while let Some(own) = next(tablet) {
                let plan = Plan {
                    kind: CompactionKind::Cleanup,
                    level: own.sstable.stats().level,
                    inputs: Claimed::new(vec![own]),
                    split: None,
                    moves: false,
                    expired: false,
                };
                match self.compact(table, tablet, &plan, &tablet.compactions.cancel()).await {
                    Ok(()) => cleaned += 1,
                    Err(error) => self.wait_for_removal(table, tablet, error).await?,
                }
            }
        }
        Ok(cleaned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::TabletRange;
    use crate::table::Listed;
    use bytes::Bytes;
    use model::key::{Clustering, DecoratedKey};
    use model::mutation::MutationBuilder;
    use model::options::TableOptions;
    use model::range::PartitionRange;
    use model::row::{Marker, RowBuilder};
    use model::schema::{Column, ColumnKind, TableSchema};
    use model::time::Tombstone;
    use model::{ColumnId, CqlType, HostId, SchemaVersion, Token};
    use rt::ShardId;
    use test_support::Scratch;
    use uuid::Uuid;

    fn schema() -> Rc<TableSchema> {
        let key = Column {
            id: ColumnId(0),
            name: "k".into(),
            kind: ColumnKind::PartitionKey,
            position: 0,
            ty: CqlType::Int,
            descending: false,
        };
        let mut options = TableOptions::default();
        options.compaction.insert("enabled".into(), "false".into());
        let (id, version) = (TableId(Uuid::from_u128(1)), SchemaVersion(Uuid::from_u128(2)));
        Rc::new(TableSchema::new(id, version, "ks", "t", vec![key], vec![], vec![], vec![], vec![], options))
    }

    async fn insert(engine: &Engine, schema: &TableSchema, keys: i32) {
        for k in 0..keys {
            let key = DecoratedKey::new(Bytes::copy_from_slice(&k.to_be_bytes()));
            let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
            let row = RowBuilder::new(Some(Marker::new(1)), Tombstone::LIVE).finish();
            builder.row(Clustering::from_components([]), row);
            engine.apply_durably(&builder.finish(schema), &key).await.unwrap();
        }
        engine.flush(None).await.unwrap();
    }

    /// Gives the table the lower half of the ring only. The sstables of its tablet stay.
    fn narrow(engine: &Engine, schema: &Rc<TableSchema>) -> Rc<Tablet> {
        let table = engine.registry().remove(schema.id).unwrap();
        let range = PartitionRange::tokens(Token::MIN, Token(0));
        let (pool, rows) = (engine.pool().clone(), engine.rows().clone());
        let slot = engine.registry().take_slot(schema.id);
        let set = (*table.tablets()[0].sstables()).clone();
        let tablet = Tablet::new(0, range, slot, pool, rows, set);
        let narrow = Table::new(
            schema.clone(),
            table.dir.clone(),
            vec![tablet.clone()],
            Default::default(),
            Vec::new(),
            Listed::new(Default::default()),
        );
        engine.registry().insert(schema.id, narrow);
        tablet
    }

    #[test]
    fn cleanup_drops_what_lies_outside_the_tablet() {
        rt::block_on(async {
            let scratch = Scratch::new("cleanup");
            let config = EngineConfig::new(scratch.to_path_buf(), ShardId(0), HostId(Uuid::from_u128(3)), 16 << 20);
            let engine = Engine::open(config).await.unwrap();
            let schema = schema();
            let whole = TabletRange { id: 0, range: PartitionRange::FULL };
            engine.add_table(schema.clone(), vec![whole]).await.unwrap();
            insert(&engine, &schema, 40).await;
            assert!(matches!(engine.cleanup(schema.id).await, Err(EngineError::OldLogsNeeded)), "replay is not over");
            assert!(matches!(engine.compact_major(schema.id).await, Err(EngineError::OldLogsNeeded)));
            engine.start();
            assert_eq!(engine.cleanup(schema.id).await.unwrap(), 0, "all of it is owned");

            let tablet = narrow(&engine, &schema);
            let before = tablet.sstables();
            let partitions = |set: &crate::table::SstableSet| set.iter().map(|own| own.partitions()).sum::<u64>();
            assert_eq!((partitions(&before), before.len()), (40, 1));
            assert_eq!(engine.cleanup(schema.id).await.unwrap(), 1);
            let after = tablet.sstables();
            assert!((1..40).contains(&partitions(&after)) && after.len() == 1);
            assert!(after.iter().all(|own| own.sstable.last_key().token <= Token(0)));
            assert_eq!(engine.cleanup(schema.id).await.unwrap(), 0);
            let kinds: Vec<_> = engine.compaction_history().iter().map(|record| record.kind()).collect();
            assert_eq!(kinds, [Some(CompactionKind::Cleanup)]);
            engine.abandon().await;
        });
    }

    /// Cleanup plans again after another operation has changed the sstables.
    #[test]
    fn cleanup_beside_operations_that_replace_sstables() {
        for truncates in [false, true] {
            rt::block_on(async {
                let scratch = Scratch::new(&format!("cleanup-beside-{truncates}"));
                let mut config =
                    EngineConfig::new(scratch.to_path_buf(), ShardId(0), HostId(Uuid::from_u128(3)), 16 << 20);
                config.auto_snapshot = false;
                // Each compaction takes a part of a second.
                config.compaction_throughput = 512 << 10;
                let engine = Engine::open(config).await.unwrap();
                let schema = schema();
                let whole = TabletRange { id: 0, range: PartitionRange::FULL };
                engine.add_table(schema.clone(), vec![whole]).await.unwrap();
                for _ in 0..3 {
                    insert(&engine, &schema, 3_000).await;
                }
                engine.start();
                let tablet = narrow(&engine, &schema);
                let (worker, id) = (engine.clone(), schema.id);
                let cleanup = rt::task::spawn(async move { worker.cleanup(id).await });
                while !engine.compactions_running().iter().any(|one| one.completed_bytes > 0) {
                    rt::task::yield_now().await;
                }
                match truncates {
                    true => engine.truncate(id, 1).await.map(drop).unwrap(),
                    false => engine.compact_major(id).await.unwrap(),
                }
                let cleaned = cleanup.await.unwrap().unwrap();
                let left = tablet.sstables();
                assert_eq!((cleaned, left.len()), if truncates { (0, 0) } else { (3, 1) });
                assert!(left.iter().all(|own| tablet.range.contains(own.sstable.last_key())));
                engine.abandon().await;
            });
        }
    }

    /// A compaction that has sealed its outputs cannot be stopped any more. All removals of its
    /// tablet wait for it, however many there are; one that did not would find its sstables
    /// replaced. Other tablets do not wait.
    #[test]
    fn removals_wait_for_a_compaction_that_can_no_longer_be_stopped() {
        rt::block_on(async {
            let scratch = Scratch::new("removals-wait");
            let config = EngineConfig::new(scratch.to_path_buf(), ShardId(0), HostId(Uuid::from_u128(3)), 16 << 20);
            let engine = Engine::open(config).await.unwrap();
            let schema = schema();
            let half = |id, from: Token, to: Token| TabletRange { id, range: PartitionRange::tokens(from, to) };
            let halves = vec![half(0, Token::MIN, Token(0)), half(1, Token(0), Token::MAX)];
            engine.add_table(schema.clone(), halves).await.unwrap();
            insert(&engine, &schema, 40).await;
            let table = engine.table(schema.id).unwrap();
            let compacted = table.tablets()[0].clone();
            let running = compacted.compactions.enter().unwrap();
            let (dropping, truncating, id) = (engine.clone(), engine.clone(), schema.id);
            let removals = [
                rt::task::spawn(async move { dropping.remove_tablet(id, 0).await.map(drop) }),
                rt::task::spawn(async move { truncating.truncate(id, 1).await.map(drop) }),
            ];
            while !table.excludes_compactions() || !compacted.compactions.exclusion().is_active() {
                rt::task::yield_now().await;
            }
            engine.remove_tablet(schema.id, 1).await.unwrap();
            // Without the compaction, a removal takes less than this.
            rt::time::sleep(std::time::Duration::from_millis(200)).await;
            assert!(removals.iter().all(|removal| !removal.is_finished()));
            assert!(compacted.sstables().len() > 0, "nothing is removed yet");
            drop(running);
            for removal in removals {
                removal.await.unwrap().unwrap();
            }
            assert_eq!((table.tablets().len(), compacted.sstables().len()), (0, 0));
            engine.abandon().await;
        });
    }

    /// A compaction is planned, and the tablet leaves before the compaction begins.
    #[test]
    fn a_plan_ends_with_the_tablet_it_was_made_for() {
        rt::block_on(async {
            let scratch = Scratch::new("late-plan");
            let config = EngineConfig::new(scratch.to_path_buf(), ShardId(0), HostId(Uuid::from_u128(3)), 16 << 20);
            let engine = Engine::open(config).await.unwrap();
            let schema = schema();
            let whole = TabletRange { id: 0, range: PartitionRange::FULL };
            engine.add_table(schema.clone(), vec![whole]).await.unwrap();
            insert(&engine, &schema, 40).await;
            let table = engine.table(schema.id).unwrap();
            let (tablet, cancel) = (table.tablets()[0].clone(), table.tablets()[0].compactions.cancel());
            let plan = Plan {
                kind: CompactionKind::Compaction,
                inputs: Claimed::new(tablet.sstables().iter().cloned().collect()),
                level: 0,
                split: None,
                moves: false,
                expired: true,
            };
            engine.remove_tablet(schema.id, 0).await.unwrap();
            let late = engine.compact(&table, &tablet, &plan, &cancel).await;
            assert!(matches!(late, Err(EngineError::Cancelled)), "{late:?}");
            engine.abandon().await;
        });
    }
}
