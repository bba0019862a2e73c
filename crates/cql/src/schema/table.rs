//! CREATE TABLE and DROP TABLE.

use super::create_table::{Identity, definition};
use super::{PlannedChange, first_types, names, written_keyspace};
use crate::api::{SchemaAction, SchemaTarget};
use crate::error::Error;
use crate::guardrails::Guardrails;
use crate::syntax::ast::{CreateTable, DropTable};
use cluster::Metadata;
use cluster::metadata::{KeyspaceDefinition, NodeInfo, Op, TableDefinition, TabletsDefinition};
use cluster::tablets::count::TabletCountHints;
use model::id::{SchemaVersion, TableId};
use model::options::OptionMap;

pub(super) fn create(
    metadata: &Metadata,
    node: &NodeInfo,
    guardrails: &Guardrails,
    statement: &CreateTable,
) -> Result<PlannedChange, Error> {
    let (keyspace, name) = (written_keyspace(&statement.name), statement.name.name.as_str());
    names::check_modifiable(keyspace)?;
    let identity = Identity { table: new_table_id(), version: new_version() };
    let Some(home) = metadata.keyspace(keyspace) else {
        return Err(Error::invalid(format!("Cannot create a table in a non-existent keyspace: {keyspace}")));
    };
    let (definition, mut warnings) = definition(metadata, statement, identity)?;
    if home.tables.contains_key(name) {
        if statement.if_not_exists {
            return Ok(PlannedChange::nothing());
        }
        return Err(Error::AlreadyExists {
            keyspace: keyspace.to_owned(),
            table: name.to_owned(),
            message: format!("Cannot add already existing table \"{name}\" to keyspace \"{keyspace}\""),
        });
    }
    if metadata.table_by_id(definition.id).is_some() {
        return Err(Error::Configuration(format!("There is a table with ID {} already", definition.id)));
    }
    warnings.extend(guardrails.check_table(&definition.options)?);
    let tablets = place(metadata, node, &home.definition, &definition)?;
    let (id, is_given) = (definition.id, definition.id != identity.table);
    let mut ops = vec![Op::PutTable(Box::new(definition)), Op::PutTablets(tablets)];
    if is_given {
        // An earlier table may have had this id. Its rows in commitlogs, hints, sstables and
        // requests belong to an earlier epoch.
        ops.push(Op::Truncate { table: id, epoch: metadata.number + 1 });
    }
    Ok(PlannedChange::new(ops, SchemaAction::Created, SchemaTarget::Table(name.to_owned()), keyspace).warned(warnings))
}

pub(super) fn drop(metadata: &Metadata, statement: &DropTable) -> Result<PlannedChange, Error> {
    let (keyspace, name) = (written_keyspace(&statement.name), statement.name.name.as_str());
    names::check_modifiable(keyspace)?;
    let found = metadata.keyspace(keyspace);
    if let Some(table) = found.and_then(|keyspace| keyspace.tables.get(name)) {
        let mut ops = vec![Op::DropTable { keyspace: keyspace.to_owned(), name: name.to_owned() }];
        ops.extend(first_types::retire(table));
        return Ok(PlannedChange::new(ops, SchemaAction::Dropped, SchemaTarget::Table(name.to_owned()), keyspace));
    }
    if statement.if_exists {
        return Ok(PlannedChange::nothing());
    }
    Err(Error::invalid(match found {
        Some(_) => format!("Cannot drop non existing table '{name}' in keyspace '{keyspace}'."),
        None => format!("Keyspace {keyspace} does not exist"),
    }))
}

/// A new version of a table's schema. It is random, so that two changes never make the same
/// version.
pub(super) fn new_version() -> SchemaVersion {
    SchemaVersion(rt::random::uuid_v4())
}

fn new_table_id() -> TableId {
    TableId(rt::random::time_uuid())
}

/// Places the tablets of a new table on nodes and shards.
fn place(
    metadata: &Metadata,
    node: &NodeInfo,
    keyspace: &KeyspaceDefinition,
    table: &TableDefinition,
) -> Result<TabletsDefinition, Error> {
    let number = |options: &OptionMap, name: &str| options.get(name).and_then(|text| text.parse::<f64>().ok());
    let hint = |name: &str| number(&table.options.tablets, name);
    let expected_size = hint("expected_data_size_in_gb").map(|size| (size / TARGET_TABLET_GB).ceil() as u32);
    let at_least = [
        number(&keyspace.tablets, "initial").map(|count| count as u32),
        hint("min_tablet_count").map(|count| count as u32),
        expected_size,
    ];
    let at_least = at_least.into_iter().flatten().max().unwrap_or(0);
    let at_most = hint("max_tablet_count").map(|count| count as u32).filter(|count| *count > 0);
    let hints = TabletCountHints { at_least, per_shard: hint("min_per_shard_tablet_count"), at_most };
    let map = cluster::placement::place(metadata, node, keyspace, hints);
    let map = map.map_err(|error| Error::Configuration(error.to_string()))?;
    let replicas = (0..map.count()).map(|tablet| map.replicas(tablet).to_vec()).collect();
    Ok(TabletsDefinition { table: table.id, replicas })
}

/// The intended size of a tablet, in GB.
const TARGET_TABLET_GB: f64 = 5.0;
