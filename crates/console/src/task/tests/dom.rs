//! A page as a browser would parse it: its elements in their order, each with its attributes and its text.

use askama::Template;
use html5ever::{ParseOpts, parse_document, tendril::TendrilSink};
use markup5ever_rcdom::{Handle, NodeData, RcDom};

#[derive(Debug)]
pub struct Element {
    pub name: String,
    attributes: Vec<(String, String)>,
    pub text: String,
    /// The names of the elements around it.
    path: Vec<String>,
}

impl Element {
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn has_class(&self, class: &str) -> bool {
        self.get("class")
            .is_some_and(|classes| classes.split(' ').any(|other| other == class))
    }

    pub fn is_inside(&self, name: &str) -> bool {
        self.path.iter().any(|other| other == name)
    }
}

pub struct Dom(pub Vec<Element>);

impl Dom {
    pub fn of(page: &impl Template) -> Self {
        Self::parse(&page.render().unwrap())
    }

    pub fn parse(html: &str) -> Self {
        let dom = parse_document(RcDom::default(), ParseOpts::default()).one(html);
        let mut elements = Vec::new();
        walk(&dom.document, &mut Vec::new(), &mut elements);
        let dom = Self(elements);
        dom.check();
        dom
    }

    /// Fails if a page has something within it that the policy forbids, or an address outside of the console's path.
    fn check(&self) {
        for element in &self.0 {
            for (name, value) in &element.attributes {
                assert!(
                    name != "style" && !name.starts_with("on"),
                    "{element:?} has {name}"
                );
                if matches!(name.as_str(), "href" | "action" | "src") {
                    let is_ours = value.starts_with("/p/") || value.starts_with('#');
                    assert!(is_ours, "{value} is no address of this service");
                }
            }
            assert!(
                element.name != "script" || element.text.is_empty(),
                "a script with content"
            );
            assert!(element.name != "style", "a style");
        }
        assert_eq!(self.all("h1").len(), 1, "one title");
        let mut ids: Vec<_> = self
            .0
            .iter()
            .filter_map(|element| element.get("id"))
            .collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count, "an id is there twice");
    }

    pub fn all(&self, name: &str) -> Vec<&Element> {
        self.0
            .iter()
            .filter(|element| element.name == name)
            .collect()
    }

    pub fn classed(&self, class: &str) -> Vec<&Element> {
        self.0
            .iter()
            .filter(|element| element.has_class(class))
            .collect()
    }

    pub fn text(&self, name: &str) -> &str {
        &self
            .all(name)
            .first()
            .unwrap_or_else(|| panic!("no {name}"))
            .text
    }

    /// Returns the value of a field of a form.
    pub fn field(&self, name: &str) -> Option<&str> {
        let field = self
            .0
            .iter()
            .find(|element| element.name == "input" && element.get("name") == Some(name));
        field.map(|field| field.get("value").unwrap_or_default())
    }

    /// Returns the address of the link with this text.
    pub fn link(&self, text: &str) -> &str {
        let link = self.all("a").into_iter().find(|link| link.text == text);
        link.and_then(|link| link.get("href"))
            .unwrap_or_else(|| panic!("no link {text:?}"))
    }
}

fn walk(node: &Handle, path: &mut Vec<String>, elements: &mut Vec<Element>) {
    if let NodeData::Element { name, attrs, .. } = &node.data {
        let attributes = attrs.borrow();
        let attributes = attributes
            .iter()
            .map(|attr| (attr.name.local.to_string(), attr.value.to_string()));
        elements.push(Element {
            name: name.local.to_string(),
            attributes: attributes.collect(),
            text: text_of(node).trim().to_owned(),
            path: path.clone(),
        });
        path.push(name.local.to_string());
    }
    for child in node.children.borrow().iter() {
        walk(child, path, elements);
    }
    if matches!(node.data, NodeData::Element { .. }) {
        path.pop();
    }
}

fn text_of(node: &Handle) -> String {
    match &node.data {
        NodeData::Text { contents } => contents.borrow().to_string(),
        // The title of a picture is a tip, not text of the page.
        NodeData::Element { name, .. } if &*name.local == "title" => String::new(),
        _ => node.children.borrow().iter().map(text_of).collect(),
    }
}
