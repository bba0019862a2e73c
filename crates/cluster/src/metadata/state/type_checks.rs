//! Whether the types and tables of a change are within the limits on types.

use super::Metadata;
use crate::metadata::definition::{Op, TableDefinition, TypeDefinition};
use model::types::limits::{self, Extent, MAX_TABLE_NODES};
use model::types::{self, CqlType, UserType, ValueError};

impl Metadata {
    /// Refuses a change that creates types or tables beyond the limits on types. For the node that
    /// makes a change: a change that was agreed on is applied regardless.
    pub fn check_types(&self, ops: &[Op]) -> Result<(), ValueError> {
        let mut ahead = self.clone();
        for op in ops {
            match op {
                Op::PutType(definition) => {
                    ahead.check_user_type(definition)?;
                    // Other errors are reported when the change is applied.
                    if ahead.step(op).is_err() {
                        return Ok(());
                    }
                }
                Op::PutTable(definition) => ahead.check_columns(definition)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn check_user_type(&self, definition: &TypeDefinition) -> Result<(), ValueError> {
        let TypeDefinition { keyspace, name, fields } = definition;
        let checked = fields.iter().map(|(field, ty)| {
            let what = format!("Field {field} of user type {keyspace}.{name}");
            Ok((field.clone(), self.checked_type(keyspace, ty, &what)?))
        });
        let fields = checked.collect::<Result<_, ValueError>>()?;
        let user_type = UserType { keyspace: keyspace.clone(), name: name.clone(), fields, frozen: false };
        limits::check(&CqlType::udt(user_type), format_args!("User type {keyspace}.{name}")).map(drop)
    }

    fn check_columns(&self, definition: &TableDefinition) -> Result<(), ValueError> {
        let table = format!("{}.{}", definition.keyspace, definition.name);
        let mut nodes = 0;
        for column in &definition.columns {
            let what = format!("Column {} of table {table}", column.name);
            nodes += Extent::of(&self.checked_type(&definition.keyspace, &column.ty, &what)?).nodes;
        }
        if nodes <= MAX_TABLE_NODES {
            return Ok(());
        }
        Err(ValueError::new(format!(
            "The columns of table {table} consist of more than {MAX_TABLE_NODES} types, counting the types inside user types \
             wherever they are used"
        )))
    }

    /// Parses a type within the limits; the error calls it `what`.
    fn checked_type(&self, keyspace: &str, text: &str, what: &str) -> Result<CqlType, ValueError> {
        let resolve = |own: Option<&str>, name: &str| self.keyspace(own.unwrap_or(keyspace))?.types.get(name).cloned();
        types::parse::parse_as(text, &resolve, what)
    }
}
