//! ALTER TABLE: adds, drops, renames and retypes columns, and sets options. Every change gives the
//! table's schema a new version.

use super::create_table::STATIC_WITHOUT_CLUSTERING;
use super::first_types;
use super::options::{self, Purpose};
use super::table::new_version;
use super::{PlannedChange, names, types, written_keyspace};
use crate::api::{SchemaAction, SchemaTarget};
use crate::error::Error;
use crate::guardrails::Guardrails;
use crate::syntax::ast::{
    AlterTable, AlterTableAction, ColumnDefinition as WrittenColumn, Literal, Name, Term, TypeName,
};
use cluster::Metadata;
use cluster::metadata::{ColumnDefinition, DroppedDefinition, Op, Table, TableDefinition, lasting_type};
use model::CqlType;
use model::id::ColumnId;
use model::schema::{ColumnKind, TableSchema};
use model::types::Quoted;
use model::types::compatibility::{keeps_bytes, keeps_order, keeps_values};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn alter(
    metadata: &Metadata,
    guardrails: &Guardrails,
    statement: &AlterTable,
    now: &dyn Fn() -> i64,
) -> Result<PlannedChange, Error> {
    let (keyspace, name) = (written_keyspace(&statement.name), statement.name.name.as_str());
    names::check_modifiable(keyspace)?;
    let table = match names::table(metadata, keyspace, name) {
        Ok(table) => table,
        Err(_) if statement.if_exists => return Ok(PlannedChange::nothing()),
        Err(error) => return Err(error),
    };
    let mut definition = (*table.definition).clone();
    let mut warnings = Vec::new();
    let changed = match &statement.action {
        AlterTableAction::Add { if_not_exists, columns } => {
            add(metadata, table, &mut definition, columns, *if_not_exists)?
        }
        AlterTableAction::Drop { if_exists, columns, timestamp } => {
            drop(&table.schema, &mut definition, columns, timestamp.as_ref(), *if_exists, now())?
        }
        AlterTableAction::Rename { if_exists, pairs } => rename(&table.schema, &mut definition, pairs, *if_exists)?,
        AlterTableAction::ColumnType { column, type_name } => {
            retype(metadata, &table.schema, &mut definition, column, type_name)?
        }
        AlterTableAction::Options(written) => {
            let applied = options::apply(Some(&definition.options), written, Purpose::Alter)?;
            if table.schema.is_counter() && applied.options.default_time_to_live > 0 {
                return Err(Error::invalid("Cannot set default_time_to_live on a table with counters"));
            }
            options::check_features(metadata, &applied.options)?;
            warnings = applied.warnings;
            if applied.options.compaction != definition.options.compaction
                || applied.options.default_time_to_live != definition.options.default_time_to_live
            {
                warnings.extend(guardrails.check_table(&applied.options)?);
            }
            definition.options = applied.options;
            true
        }
        AlterTableAction::RowTtl(_) => return Err(Error::not_supported("ALTER TABLE ... TTL")),
    };
    if !changed {
        return Ok(PlannedChange::nothing());
    }
    definition.version = new_version();
    let ops = vec![Op::PutTable(Box::new(definition))];
    Ok(PlannedChange::new(ops, SchemaAction::Updated, SchemaTarget::Table(name.to_owned()), keyspace).warned(warnings))
}

fn add(
    metadata: &Metadata,
    table: &Table,
    definition: &mut TableDefinition,
    columns: &[WrittenColumn],
    if_not_exists: bool,
) -> Result<bool, Error> {
    let schema = &table.schema;
    let mut next_id = schema.next_column_id();
    let mut changed = false;
    let mut kinds: BTreeMap<String, ColumnKind> =
        definition.columns.iter().map(|column| (column.name.clone(), column.kind)).collect();
    // The last column of each name that was dropped.
    let gone: BTreeMap<String, DroppedDefinition> =
        definition.dropped.iter().map(|dropped| (dropped.name.clone(), dropped.clone())).collect();
    for written in columns {
        let name = written.name.as_str();
        if let Some(kind) = kinds.get(name) {
            if if_not_exists {
                continue;
            }
            let what = match kind {
                ColumnKind::PartitionKey => "a PRIMARY KEY part",
                _ => "an existing column",
            };
            return Err(Error::invalid(format!("Invalid column name {name} because it conflicts with {what}")));
        }
        names::check_column_name(name)?;
        if written.is_ttl {
            return Err(Error::not_supported("a TTL column"));
        }
        if written.is_static && schema.clustering.is_empty() {
            return Err(Error::invalid(STATIC_WITHOUT_CLUSTERING));
        }
        let ty = types::resolve(metadata, &definition.keyspace, &written.type_name)?;
        if ty.is_counter() != schema.is_counter() {
            let (this, of) = if ty.is_counter() { ("", "non ") } else { ("non ", "") };
            return Err(Error::Configuration(format!(
                "Cannot add a {this}counter column ({name}) in a {of}counter column family"
            )));
        }
        let before = gone.get(name);
        if ty.is_counter() && before.is_some() {
            return Err(Error::invalid(format!("Cannot re-add previously dropped counter column {name}")));
        }
        let kind = if written.is_static { ColumnKind::Static } else { ColumnKind::Regular };
        if let Some(before) = before {
            check_dropped(metadata, &definition.keyspace, before, kind, &ty)?;
        }
        if next_id.0 == u16::MAX {
            return Err(Error::invalid(format!("No column can be added to table {} any more", definition.name)));
        }
        let has_changed = |before: &CqlType| before.to_string() != ty.to_string();
        let is_other = |before: &&DroppedDefinition| {
            metadata.parse_type(&definition.keyspace, &before.ty).as_ref().is_ok_and(has_changed)
        };
        if let Some(before) = before.filter(is_other) {
            first_types::note(definition, name, &before.ty);
        }
        let column =
            ColumnDefinition { id: next_id, name: name.to_owned(), kind, ty: ty.to_string(), descending: false };
        definition.columns.push(column);
        kinds.insert(name.to_owned(), kind);
        next_id = ColumnId(next_id.0 + 1);
        changed = true;
    }
    Ok(changed)
}

/// Checks that a column with a formerly used name gets a type under which the old cells can be
/// read. Sstables contain such cells until compaction drops them.
fn check_dropped(
    metadata: &Metadata,
    keyspace: &str,
    dropped: &DroppedDefinition,
    kind: ColumnKind,
    ty: &CqlType,
) -> Result<(), Error> {
    let name = &dropped.name;
    if dropped.kind != kind {
        let name_of = |kind: ColumnKind| if kind == ColumnKind::Static { "STATIC" } else { "REGULAR" };
        return Err(Error::invalid(format!(
            "Cannot re-add previously dropped column '{name}' of kind {}, incompatible with previous kind {}",
            name_of(kind),
            name_of(dropped.kind)
        )));
    }
    let Ok(old) = metadata.parse_type(keyspace, &dropped.ty) else {
        return Err(Error::invalid(format!(
            "Cannot re-add previously dropped column {name}: its type is not known any more"
        )));
    };
    if keeps_values(&old.freeze_nested(), &ty.freeze_nested()) {
        return Ok(());
    }
    if ty.is_collection() && ty.is_multi_cell() && old.is_collection() && old.is_multi_cell() {
        return Err(Error::invalid(format!(
            "Cannot add a collection with the name {name} because a collection with the same name and a different type has \
             already been used in the past"
        )));
    }
    let fields = match old.to_string() == ty.to_string() {
        true => format!(": the user types in it had other fields then: {}", fields_of(&old)),
        false => String::new(),
    };
    Err(Error::invalid(format!(
        "Cannot re-add previously dropped column '{name}' of type {ty}, incompatible with previous type {old}{fields}"
    )))
}

/// The user types in a type with their fields, shortened if long.
fn fields_of(ty: &CqlType) -> String {
    const MOST: usize = 500;
    let mut shown = String::new();
    ty.any(&mut |ty| {
        if let CqlType::Udt(user_type) = ty {
            let fields = user_type.fields.iter().map(|(name, ty)| format!("{} {ty}", Quoted(name)));
            let fields = fields.take(MOST / 4).collect::<Vec<_>>().join(", ");
            let separator = if shown.is_empty() { "" } else { ", " };
            shown += &format!("{separator}{} ({fields})", Quoted(&user_type.name));
        }
        shown.len() > MOST
    });
    if let Some((end, _)) = shown.char_indices().nth(MOST) {
        shown.truncate(end);
        shown += "...";
    }
    shown
}

fn drop(
    schema: &TableSchema,
    definition: &mut TableDefinition,
    columns: &[Name],
    timestamp: Option<&Term>,
    if_exists: bool,
    // By the clock of writes, so that no existing cell is newer. It is ahead of the wall clock if
    // that was set back.
    now: i64,
) -> Result<bool, Error> {
    let drop_time = match timestamp {
        None => now,
        Some(Term::Literal(Literal::Integer(text))) => {
            let time =
                text.parse().map_err(|_| Error::invalid(format!("Invalid timestamp {text} of a dropped column")))?;
            if time > now {
                return Err(Error::invalid(format!(
                    "Cannot drop a column with the timestamp {time}, which is in the future: a column of that name that is added \
                     again would lose all writes until then"
                )));
            }
            time
        }
        Some(_) => return Err(Error::invalid("The timestamp of a dropped column must be an integer")),
    };
    let places: BTreeMap<&str, usize> =
        definition.columns.iter().enumerate().map(|(at, column)| (column.name.as_str(), at)).collect();
    let mut gone = BTreeSet::new();
    for name in columns {
        let Some(&at) = places.get(name.as_str()).filter(|at| !gone.contains(*at)) else {
            if if_exists {
                continue;
            }
            return Err(Error::invalid(format!("Column {name} was not found in table {}", schema.name)));
        };
        if matches!(definition.columns[at].kind, ColumnKind::PartitionKey | ColumnKind::Clustering) {
            return Err(Error::invalid(format!("Cannot drop PRIMARY KEY part {name}")));
        }
        gone.insert(at);
    }
    let mut at = 0..;
    let columns = definition.columns.extract_if(.., |_| at.next().is_some_and(|at| gone.contains(&at)));
    for ColumnDefinition { id, name, kind, ty, .. } in columns {
        let ty = schema.column_named(&name).map_or(ty, |column| lasting_type(&column.ty));
        definition.dropped.push(DroppedDefinition { id, name, kind, ty, drop_time });
    }
    Ok(!gone.is_empty())
}

fn rename(
    schema: &TableSchema,
    definition: &mut TableDefinition,
    pairs: &[(Name, Name)],
    if_exists: bool,
) -> Result<bool, Error> {
    let mut changed = false;
    for (from, to) in pairs {
        let Some(at) = definition.columns.iter().position(|column| column.name == from.as_str()) else {
            if if_exists {
                continue;
            }
            return Err(Error::invalid(format!("Cannot rename unknown column {from} in table {}", schema.name)));
        };
        if definition.columns.iter().any(|column| column.name == to.as_str()) {
            return Err(Error::invalid(format!(
                "Cannot rename column {from} to {to} in table {}; another column of that name already exist",
                schema.name
            )));
        }
        if !matches!(definition.columns[at].kind, ColumnKind::PartitionKey | ColumnKind::Clustering) {
            return Err(Error::invalid(format!("Cannot rename non PRIMARY KEY part {from}")));
        }
        names::check_column_name(to.as_str())?;
        definition.columns[at].name = to.as_str().to_owned();
        first_types::rename(definition, from.as_str(), to.as_str());
        changed = true;
    }
    Ok(changed)
}

fn retype(
    metadata: &Metadata,
    schema: &TableSchema,
    definition: &mut TableDefinition,
    column: &Name,
    written: &TypeName,
) -> Result<bool, Error> {
    let Some(current) = schema.column_named(column.as_str()) else {
        return Err(Error::invalid(format!("Column {column} was not found in table {}", schema.name)));
    };
    let (old, new) = (&current.ty, types::resolve(metadata, &definition.keyspace, written)?);
    let (compatible, how) = match current.kind {
        ColumnKind::PartitionKey => (keeps_bytes(old, &new), "types are incompatible"),
        ColumnKind::Clustering => {
            (keeps_order(old, &new) && !new.contains_duration(), "types are not order-compatible")
        }
        ColumnKind::Static | ColumnKind::Regular => (keeps_values(old, &new), "types are incompatible"),
    };
    if !compatible {
        return Err(Error::Configuration(format!("Cannot change {column} from type {old} to type {new}: {how}.")));
    }
    if let Some(column) = definition.columns.iter_mut().find(|column| column.name == current.name) {
        column.ty = new.to_string();
        if *old != new {
            first_types::note(definition, &current.name, &lasting_type(old));
        }
    }
    Ok(*old != new)
}
