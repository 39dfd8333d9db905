//! The tables of the documentation, in Markdown.

use std::fmt::Write;

use crate::schema::{Definitions, Table};

impl Definitions {
    /// A section with a table for each object.
    pub fn markdown(&self) -> String {
        let sections: Vec<_> = self.tables.iter().map(Table::markdown).collect();
        sections.join("\n")
    }
}

impl Table {
    fn markdown(&self) -> String {
        let mut page = format!("## {}\n\n{}\n\n", self.name, self.about);
        page.push_str("| field | value | default | meaning |\n| --- | --- | --- | --- |\n");
        for row in &self.rows {
            let default = match row.default.as_str() {
                "" | "required" => row.default.clone(),
                json => format!("`{json}`"),
            };
            // A string takes any text.
            let _ = writeln!(
                page,
                "| `{}` | {} | {default} | {} |",
                row.field,
                row.form,
                row.about.replace('|', "\\|")
            );
        }
        page
    }
}
