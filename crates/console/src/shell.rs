//! The frame around every page: the head with the search, the navigation and the foot. A page is a template that
//! extends `layout.html` and has the frame as its field `page`.

use jiff::Timestamp;

use crate::{
    assets,
    params::{Params, encoded},
    parts::{Badge, Count, Html, Icon, Sentence, Time, actor, counted, number},
    service::{Installation, Person},
};

/// The parts of the console that the navigation lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    Home,
    Tasks,
    Bulk,
    Workflows,
    Agents,
    Schedules,
    Asks,
    Messages,
    Changes,
    Instances,
    /// A page that is in no part.
    None,
}

const SECTIONS: [(Section, &str, &str); 10] = [
    (Section::Home, "Home", ""),
    (Section::Tasks, "Tasks", "/tasks"),
    (Section::Bulk, "Bulk jobs", "/bulk"),
    (Section::Workflows, "Workflows", "/workflows"),
    (Section::Agents, "Agents", "/agents"),
    (Section::Schedules, "Schedules", "/schedules"),
    (Section::Asks, "Asks", "/asks"),
    (Section::Messages, "Messages", "/messages"),
    (Section::Changes, "Changes", "/changes"),
    (Section::Instances, "Instances", "/instances"),
];

/// An item of the navigation.
pub struct NavItem {
    pub name: &'static str,
    pub link: String,
    pub is_current: bool,
    pub count: Option<NavCount>,
}

/// A number beside an item of the navigation.
#[derive(Clone)]
pub struct NavCount {
    pub section: Section,
    pub number: String,
    /// True: it is about something that has failed.
    pub is_bad: bool,
}

pub struct Shell {
    pub title: String,
    pub section: Section,
    pub person: Person,
    pub installation: Installation,
    pub now: Timestamp,
    /// The address of this page, with its query.
    pub here: String,
    /// The parameters of this page.
    pub query: Params,
    /// The numbers in the navigation, on pages that know them.
    pub counts: Vec<NavCount>,
}

impl Shell {
    /// Returns the address of a page, such as `/tasks`, or of the home page for an empty path. Every link of the
    /// console is made here, so that it works below the path of `public_url`.
    pub fn to(&self, path: &str) -> String {
        format!("{}/console{path}", self.installation.base)
    }

    /// Returns the address of a page of the service outside the console, such as `/docs`.
    pub fn outside(&self, path: &str) -> String {
        format!("{}{path}", self.installation.base)
    }

    pub fn asset(&self, name: &str) -> String {
        assets::address(&self.installation.base, name)
    }

    pub fn task(&self, id: &str) -> String {
        self.to(&format!("/tasks/{}", encoded(id)))
    }

    pub fn cause(&self, fingerprint: &str) -> String {
        self.to(&format!("/causes/{}", encoded(fingerprint)))
    }

    pub fn bulk(&self, id: &str) -> String {
        self.to(&format!("/bulk/{}", encoded(id)))
    }

    pub fn agent(&self, name: &str) -> String {
        self.to(&format!("/agents/{}", encoded(name)))
    }

    /// Returns the address of the page of a command for an agent.
    pub fn agent_command(&self, name: &str, command: &str) -> String {
        format!("{}/{}", self.agent(name), encoded(command))
    }

    /// Returns the address of the page of an agent, if it has one: not a URL that a step calls, and not a sum of several.
    pub fn agent_page(&self, name: &str) -> Option<String> {
        // No name of an agent has a colon, and every URL has one.
        let is_agent = has_page(name) && !name.contains(':');
        is_agent.then(|| self.agent(name))
    }

    pub fn workflow(&self, name: &str) -> String {
        self.to(&format!("/workflows/{}", encoded(name)))
    }

    pub fn schedule(&self, name: &str) -> String {
        self.to(&format!("/schedules/{}", encoded(name)))
    }

    pub fn navigation(&self) -> Vec<NavItem> {
        let items = SECTIONS.iter().map(|(section, name, path)| NavItem {
            name,
            link: self.to(path),
            is_current: *section == self.section,
            count: self
                .counts
                .iter()
                .find(|count| count.section == *section)
                .cloned(),
        });
        items.collect()
    }

    /// Returns the interval in seconds at which the page reads itself again, by its parameter `live`.
    pub fn live(&self) -> Option<u32> {
        let seconds = self.query.get("live")?.strip_suffix('s')?.parse().ok()?;
        (2..=60).contains(&seconds).then_some(seconds)
    }

    /// Returns the address of this page that reads itself again, or that does so no longer.
    pub fn toggle_live(&self) -> String {
        let path = self.here.split('?').next().unwrap_or_default();
        let query = match self.live() {
            Some(_) => self.query.without("live"),
            None => self.query.with("live", "5s"),
        };
        format!("{path}{}", query.query())
    }

    /// Returns whether this page offers commands.
    pub fn operates(&self) -> bool {
        self.person.role.operates()
    }

    pub fn time(&self, at: impl AsRef<str>) -> Html {
        Time::new(at.as_ref(), self.now)
    }

    /// Returns a sentence of the API, with its times in the zone of the reader.
    pub fn text(&self, text: impl AsRef<str>) -> Html {
        Sentence::new(text.as_ref(), self.now)
    }

    pub fn time_now(&self) -> Html {
        self.time(self.now.to_string())
    }

    pub fn state(&self, word: impl AsRef<str>) -> Html {
        Badge::state(word.as_ref())
    }

    pub fn pill(&self, word: impl AsRef<str>) -> Html {
        Badge::pill(word.as_ref())
    }

    /// Returns the badge of another state, such as `breaker open`.
    pub fn badge(&self, class: &str, shape: &str, word: impl AsRef<str>) -> Html {
        Badge::other(class, shape, word.as_ref())
    }

    /// Returns the name of a person or an instance, as people say it.
    pub fn actor<'a>(&self, by: &'a str) -> &'a str {
        actor(by)
    }

    pub fn icon(&self, shape: &str) -> Html {
        Html::of(&Icon { shape })
    }

    pub fn counted(&self, count: impl Count, one: &str, many: &str) -> String {
        counted(count.value(), one, many)
    }

    pub fn number(&self, count: impl Count) -> String {
        number(count.value())
    }
}

/// Returns whether a name is that of a thing with a page of its own. `(other)` and the like are sums.
pub fn has_page(name: &str) -> bool {
    !name.starts_with('(')
}
