//! The type of a field that is a map.

use std::collections::BTreeMap;

use serde_json::{Value, json, value::RawValue};

use crate::{
    bounds::Bounds,
    fields::Fields,
    schema::Definitions,
    value::{Faults, FieldValue, ITEMS, Place, Unfit, bounded, count_fault, with_words},
};

/// A map under the sender's own names. The bounds of its values are their type's own.
impl<T: FieldValue> FieldValue for BTreeMap<String, T> {
    type Bound = usize;

    fn read(value: &RawValue, place: Place<'_>, bounds: &Bounds<usize>) -> Result<Self, Unfit> {
        let map = place.to_string();
        let mut fields = Fields::of(value, &map).map_err(Unfit::Parts)?;
        let members = fields.take_all();
        if let Some(message) = count_fault(members.len(), bounds, ITEMS) {
            return Err(Unfit::Value(message));
        }
        let mut found = BTreeMap::new();
        for (name, value) in members {
            let place = Place::new(&map, &name);
            match T::read(value, place, &Bounds::ANY) {
                Ok(value) => drop(found.insert(name.into_owned(), value)),
                Err(unfit) => fields.extend(unfit.at(place)),
            }
        }
        fields.finish().map_err(Unfit::Parts)?;
        Ok(found)
    }

    fn check(&self, bounds: &Bounds<usize>, faults: &mut Faults) {
        if let Some(message) = count_fault(self.len(), bounds, ITEMS) {
            faults.add(message);
        }
        let most = bounds.most.unwrap_or(usize::MAX);
        for (name, value) in self.iter().take(most) {
            faults.part(name, |faults| value.check(&Bounds::ANY, faults));
        }
    }

    fn schema(bounds: &Bounds<usize>, definitions: &mut Definitions) -> Value {
        let values = T::schema(&Bounds::ANY, definitions);
        let schema = json!({
            "type": "object",
            "additionalProperties": values,
            "propertyNames": { "type": "string" },
        });
        bounded(schema, bounds, ["minProperties", "maxProperties"])
    }

    fn form(bounds: &Bounds<usize>) -> String {
        let values = format!("map of {}", T::form(&Bounds::ANY));
        with_words(&values, bounds, "")
    }

    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}
