#include "recall/words.h"

#include <fmt/format.h>

#include "base/check.h"

namespace pivot::recall {

const std::vector<std::string>& key_names() {
  static const std::vector<std::string> names = {
      "Abba",       "Abdi",       "Abdon",    "Abiah",     "Abiram",      "Absalom",  "Achish",
      "Achor",      "Adah",       "Adaiah",   "Adam",      "Adiel",       "Adin",     "Agag",
      "Ahava",      "Ahaz",       "Ahaziah",  "Ahiah",     "Ahio",        "Alemeth",  "Amasa",
      "Amasai",     "Ammon",      "Amos",     "Amoz",      "Anak",        "Anakims",  "Anathoth",
      "Andrew",     "Aner",       "Arad",     "Argob",     "Ariel",       "Arnon",    "Aroer",
      "Arpad",      "Ashan",      "Asher",    "Asia",      "Assyria",     "Ater",     "Attai",
      "Azmon",      "Baal",       "Baalah",   "Baalim",    "Balak",       "Bashan",   "Bebai",
      "Belial",     "Benhadad",   "Beriah",   "Besor",     "Bethel",      "Bethuel",  "Bethzur",
      "Bezai",      "Bezer",      "Bilhah",   "Bilhan",    "Boaz",        "Canaan",   "Canaanite",
      "Carmel",     "Carmi",      "Chilion",  "Chimham",   "Chittim",     "Coniah",   "Crete",
      "Cush",       "Daniel",     "Danites",  "Dathan",    "Derbe",       "Deuel",    "Dishan",
      "Dumah",      "Ebed",       "Eden",     "Edom",      "Edomites",    "Ehud",     "Ekron",
      "Eliada",     "Eliakim",    "Elias",    "Eliel",     "Elihu",       "Elim",     "Elisha",
      "Elishah",    "Elnathan",   "Eloth",    "Esaias",    "Esrom",       "Esther",   "Etham",
      "Ezer",       "Festus",     "Gaba",     "Galal",     "Gareb",       "Gatam",    "Gath",
      "Geba",       "Gedor",      "Gentiles", "Gerar",     "Gibeah",      "Gihon",    "Gilead",
      "Gileadites", "Gittite",    "Goliath",  "Gomer",     "Habor",       "Halah",    "Hamutal",
      "Hanani",     "Haran",      "Hararite", "Hashub",    "Hebrew",      "Hebron",   "Helon",
      "Hemath",     "Hena",       "Hepher",   "Herodians", "Heth",        "Hezron",   "Hittites",
      "Hivite",     "Hori",       "Horites",  "Hosea",     "Huram",       "Immer",    "Israelites",
      "Ivah",       "Izhar",      "Jabbok",   "Jabesh",    "Jachin",      "Jael",     "Jarib",
      "Jashub",     "Jason",      "Jehoash",  "Jehohanan", "Jehu",        "Jeremiah", "Jerimoth",
      "Jeshaiah",   "Jeush",      "Jews",     "Joab",      "Joash",       "Jobab",    "John",
      "Jonadab",    "Joppa",      "Joram",    "Josedech",  "Josiah",      "Judas",    "Kanah",
      "Kareah",     "Kelita",     "Kenite",   "Kenites",   "Kish",        "Lachish",  "Laish",
      "Lamech",     "Leah",       "Levites",  "Lydda",     "Lydia",       "Lysias",   "Mahath",
      "Manasses",   "Manassites", "Maon",     "Mary",      "Massah",      "Merari",   "Mesha",
      "Micaiah",    "Millo",      "Moab",     "Moabites",  "Moabitess",   "Molech",   "Moreh",
      "Moza",       "Nabal",      "Nahor",    "Naioth",    "Nazareth",    "Neariah",  "Nebat",
      "Necho",      "Neriah",     "Noph",     "Obed",      "Ocran",       "Oded",     "Onam",
      "Ophel",      "Orion",      "Paran",    "Paseah",    "Pashur",      "Paul",     "Penuel",
      "Perez",      "Perga",      "Persia",   "Persians",  "Philistines", "Pilate",   "Puah",
      "Purim",      "Ramah",      "Reaiah",   "Rehob",     "Rehum",       "Rimmon",   "Rome",
      "Ruth",       "Salma",      "Salmon",   "Samlah",    "Sarah",       "Sarai",    "Sardis",
      "Satan",      "Seraiah",    "Seth",     "Shallum",   "Shaphan",     "Sheba",    "Shebna",
      "Shechem",    "Shem",       "Shema",    "Sheshan",   "Shimea",      "Shimei",   "Shimri",
      "Shimron",    "Shunem",     "Shushan",  "Sihor",     "Silas",       "Simon",    "Sodom",
      "Solomon",    "Syria",      "Talmon",   "Tema",      "Terah",       "Timna",    "Tola",
      "Troas",      "Ulam",       "Uriah",    "Uriel",     "Urijah",      "Uzza",     "Uzzah",
      "Uzzi",       "Uzziah",     "Vashti",   "Zaccur",    "Zadok",       "Zattu",    "Zeeb",
      "Zerah",      "Zered",      "Zichri",   "Zidon",     "Zillah",      "Zimri",    "Ziph",
      "Zuph",
  };
  return names;
}

const std::vector<std::string>& common_words() {
  static const std::vector<std::string> words = {
      "anchor",   "basket",  "candle", "dolphin", "engine",   "falcon",  "garden",  "hammer",
      "island",   "jacket",  "kettle", "lantern", "marble",   "needle",  "orchard", "pencil",
      "quarry",   "ribbon",  "saddle", "timber",  "umbrella", "velvet",  "walnut",  "yellow",
      "zebra",    "bridge",  "copper", "drawer",  "feather",  "glacier", "harbour", "insect",
      "jungle",   "kitchen", "ladder", "meadow",  "notebook", "oyster",  "parcel",  "rocket",
      "scissors", "tunnel",  "violin", "whistle", "acorn",    "button",  "compass", "diamond"};
  return words;
}

std::string draw_number(Draws& draws) { return fmt::format("{:06d}", draws.below(1'000'000)); }
std::string draw_group(Draws& draws) { return fmt::format("{:03d}", draws.below(1'000)); }

std::string draw_code(Draws& draws) {
  static constexpr std::string_view kAlphabet = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ";
  std::string code;
  for (const int group : {3, 4, 2}) {
    if (!code.empty()) code += '-';
    for (int i = 0; i < group; ++i)
      code += kAlphabet[static_cast<std::size_t>(draws.below(kAlphabet.size()))];
  }
  return code;
}

std::vector<std::string> draw_keys(Draws& draws, std::size_t count) {
  std::vector<std::string> keys = key_names();
  PIVOT_CHECK(count <= keys.size(), "{} keys of {}", count, keys.size());
  draws.shuffle(keys);
  keys.resize(count);
  return keys;
}

}  // namespace pivot::recall
