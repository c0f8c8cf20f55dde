/* Words are few on purpose (some six hundred), and the same small stock of sentences comes back in every
 * plot, so that a model of a million weights meets each of them often enough to learn it. What changes is
 * who, where, what and the turn of phrase. Each plot has a want or a trouble, a try, a helper, an end;
 * dialogue has its own lines. */
#include "data/corpus_grammar.h"

#include <stddef.h>

#define N(table) (int)(sizeof(table) / sizeof *(table))

const CorpusCharacter corpus_characters[] = {
    {"Lily", "girl", 'f', "in a small house near the forest"},
    {"Mia", "girl", 'f', "in a white house on a hill"},
    {"Rosa", "girl", 'f', "in a little house by the sea"},
    {"Emma", "girl", 'f', "at the end of a quiet road"},
    {"Tom", "boy", 'm', "in a small house by the river"},
    {"Ben", "boy", 'm', "in a tall house with a red door"},
    {"Max", "boy", 'm', "on a farm with many hens"},
    {"Leo", "boy", 'm', "in a little house near the park"},
    {"Rufus", "fox", 'm', "in a den under an old oak"},
    {"Clover", "rabbit", 'f', "in a warm hole on the hill"},
    {"Pip", "mouse", 'm', "in a tiny hole under the barn"},
    {"Bruno", "bear", 'm', "in a cave full of dry leaves"},
    {"Daisy", "duck", 'f', "in a nest beside the pond"},
    {"Olive", "owl", 'f', "in a hollow tree"},
    {"Misty", "cat", 'f', "in a house with a soft red chair"},
    {"Hop", "frog", 'm', "under a big leaf near the pond"},
    {"Hazel", "squirrel", 'f', "high up in an old oak"},
    {"Otto", "otter", 'm', "on the bank of the river"},
};
const int corpus_n_characters = N(corpus_characters);

const CorpusPlace corpus_places[] = {
    {"forest", "in the forest", "into the forest",
     "behind a tall tree|under a pile of leaves|inside a hollow log"},
    {"meadow", "in the meadow", "to the meadow", "in the tall grass|under a big flower|beside a gray stone"},
    {"garden", "in the garden", "into the garden", "behind the roses|under a cabbage leaf|next to the fence"},
    {"beach", "on the beach", "to the beach",
     "under a pink shell|behind a smooth rock|in a hole in the sand"},
    {"hill", "on the hill", "up the hill", "behind a round rock|in the soft grass|under an old bench"},
    {"pond", "by the pond", "down to the pond", "under a wide leaf|behind a wet stone|in the mud"},
    {"barn", "behind the barn", "to the barn", "under the hay|behind a wooden box|on top of an old cart"},
    {"park", "in the park", "to the park", "under the swing|behind a green bush|next to the old bench"},
    {"river", "by the river", "down to the river",
     "behind a smooth rock|under the old bridge|in the tall grass"},
};
const int corpus_n_places = N(corpus_places);

const CorpusThing corpus_things[] = {
    {"ball", "throw it high into the air", "threw it high into the air"},
    {"kite", "watch it dance in the wind", "watched it dance in the wind"},
    {"drum", "play a happy song on it", "played a happy song on it"},
    {"boat", "sail it in every puddle", "sailed it in every puddle"},
    {"wagon", "pull it up and down the path", "pulled it up and down the path"},
    {"umbrella", "spin it around and around", "spun it around and around"},
    {"bell", "ring it and listen to the sound", "rang it and listened to the sound"},
    {"balloon", "watch it float like a cloud", "watched it float like a cloud"},
    {"puppet", "make it bow and dance", "made it bow and dance"},
};
const int corpus_n_things = N(corpus_things);

const CorpusTrait corpus_traits[] = {
    {"curious", "<he> asked questions all day long"},
    {"shy", "<he> did not like to talk to strangers"},
    {"brave", "<he> was not even afraid of the dark"},
    {"kind", "<he> liked to help others"},
    {"clever", "<he> could answer any riddle"},
    {"cheerful", "<he> sang songs from morning to night"},
    {"gentle", "<he> never hurt even the smallest bug"},
    {"busy", "<he> was always making something new"},
    {"quiet", "<he> liked to sit and look at the clouds"},
};
const int corpus_n_traits = N(corpus_traits);

const CorpusRule corpus_rules[] = {
    /* ---- who, when, how ---- */
    {"opening", "(Once upon a time, there was|Once there was|Long ago, there was|In a land far away, "
                "there was) <a> (little|small|young) <h_noun> named <h>. (<h>|<he>) lived <h_home>. "
                "(<character>|<character>|)"},
    {"character", "(<h> was very <trait>, and <habit>.|Everyone said that <h> was <trait>, because "
                  "<habit>.)"},
    {"one_day", "(One (sunny|warm|windy|bright|quiet|cold) (morning|afternoon|day)|One day|Early one "
                "morning)"},
    {"walked", "(walked|ran|went|hurried)"},
    {"friend_comes", "(Just then, <a> <f_noun> named <f> came by.|<h> met <a> <f_noun> named <f>.|"
                     "^<a> <f_noun> named <f> was walking by and saw <him>.|"
                     "(Soon|Then) <h> heard a soft voice. It was <f_the>.)"},
    {"said", "(said|said|answered)"},
    {"sad", "((<h>|^<he>) was very sad.|^<he> sat down and began to cry.|^<his> eyes filled with tears.|"
            "^<he> felt a lump in <his> throat.)"},
    {"happy", "(<h> was so happy that <he> jumped up and down.|<h> laughed and clapped.|"
              "<h> felt warm inside.|<h> was full of joy.|<h> smiled from ear to ear.)"},
    {"both_happy", "(They laughed and laughed.|They were both very happy.|"
                   "They danced around in a circle.|They sang a little song together.)"},
    {"thanks", "(\"Thank you, <f>!\" said <h>. \"You are a good friend.\"|"
               "\"Thank you so much!\" said <h>.|\"You are the best friend of all,\" said <h>.|"
               "<h> gave <f> a big hug. \"Thank you!\" <he> said.)"},
    {"welcome", "(\n\"You are welcome,\" said <f>.|\n\"Friends help each other,\" said <f>.|"
                "\n\"I am glad I could help,\" said <f> with a smile.|)"},
    {"idea", "(Then <f> had an idea.|<f> thought for a moment.|<f> closed <fhis> eyes and thought hard.)"},

    /* ---- ends ---- */
    {"end_best", "(From that day on, <h> and <f> were best friends.|After that, <h> and <f> played "
                 "together every day.)"},
    {"end_friends", "(<end_best>|<end_best>|<h> and <f> shared <treat> and watched the sun go down.|"
                    "<end_night>)"},
    {"end_night", "(That night, <h> fell asleep with a smile.|That night, <h> dreamed of the <place> and "
                  "slept very well.|<h> went home tired and happy.|When the moon came up, <h> was "
                  "already fast asleep.)"},
    {"end_home", "(<h> ran home and told <his> <m> all about it.|Then they went home and ate <treat>.|"
                 "At home, <his> <m> was waiting at the door with <treat>.|<end_night>)"},

    /* ---- parts of the plots ---- */
    {"has_thing", "(<h> had <a> <color> <thing>.|<his> <m> gave <him> <a> <color> <thing>.|"
                  "For <his> birthday, <h> got <a> <color> <thing>.) (<h>|<he>) loved to <use>."},
    {"why_sad", "(\"Why are you so sad?\" asked <f>.|\"What is wrong?\" asked <f>.|"
                "\"Can I help you?\" asked <f>.)"},
    {"let_us_look", "(\"Do not worry,\" said <f>. \"I will help you.\"|\"Do not cry,\" said <f>. "
                    "\"Let us look together.\"|\"Two can see more than one,\" said <f>. "
                    "\"Let us look for it.\")"},
    {"clouds", "(Suddenly, big gray clouds came over the <place>.|Then the sky became dark.|"
               "But then a cold wind began to blow.) (Drip, drop, drip! It began to rain.|"
               "Boom! There was thunder, and the rain came down.)"},
    {"try_again", "(\"Try again,\" said <f>. \"You are almost there.|\"I had to try many times too,\" "
                  "said <f>. \"Do not stop now.|\"Nobody can do it the first time,\" said <f>. "
                  "\"Try it once more.)( I can show you how.| We can do it together.|)\""},
    {"lesson_share", "(It is more fun to share.|Good things are better with a friend.|"
                     "<h> was glad that <he> had shared.)"},
    {"fall", "(It did not go well at all.|^<he> could not do it.|It was very hard.)"},
    {NULL, NULL},
};

const char *const corpus_plots[] = {
    /* Lost and found. */
    "<opening> <has_thing>\n"
    "<one_day>, <h> <walked> <to_place> with the <thing>. (The sun was shining, and the birds were "
    "singing.|^<he> <used> and laughed.|There was so much to see.) "
    "(But when <he> (turned around|looked up|wanted to go home), the <thing> was gone!|^<he> put the "
    "<thing> down and took a nap. When <he> woke up, it was gone!)\n"
    "<h> looked (up and down the path|here and there|everywhere), but <he> could not find it. <sad>\n"
    "<friend_comes> <why_sad>\n"
    "\"I lost my <color> <thing>,\" <said> <h>. (\"I cannot find it anywhere.\"|"
    "\"It is my favorite thing.\")\n"
    "<let_us_look>\n"
    "(So they looked and looked.|They looked <other_spot>, but it was not there.|"
    "They looked high and low.) (At last, <f> saw something <color> <spot>.|"
    "Then <h> saw something <color> <spot>.) It was the <thing>! <happy>\n"
    "<thanks><welcome> <end_friends>",

    /* Too high. */
    "<opening>\n"
    "<one_day>, <h> was playing <in_place> with <a> <color> <light>. "
    "(Suddenly, a strong wind took it away.|Whoosh! The wind picked it up.) "
    "The <light> flew up, up, up and got stuck in a tall tree.\n"
    "\"Oh no!\" cried <h>. \"My <light>!\" ^<he> jumped as high as <he> could, but the branch was too "
    "high. (^<he> tried with a long stick, but the stick was too short.|"
    "^<he> shook the tree, but only leaves fell down.) <sad>\n"
    "<friend_comes> (\"That tree is very tall,\" said <f>.|\"I see your <light> up there,\" said <f>.) "
    "<idea> (\"Let us climb up together,\" <fhe> said.|\"Let us ask the wind to blow again,\" <fhe> "
    "said.|\"I will go and get a ladder,\" <fhe> said.)\n"
    "They (counted to three|held their breath|worked together), and (soon|a moment later) <h> had the "
    "<light> back. <happy>\n"
    "<thanks><welcome> <end_friends>",

    /* Sharing. */
    "<opening> <has_thing>\n"
    "<one_day>, <a> <f_noun> named <f> came to play. \"What a fine <thing>!\" said <f>. "
    "\"May I have a turn?\"\n"
    "(\"No,\" said <h>. \"It is mine.\"|\"No, you may not,\" said <h>. "
    "\"You could break it.\") <f> looked at the ground and (slowly went home|walked away).\n"
    "<h> played alone. (But it was not as much fun as before.|But soon <he> was bored.) "
    "(It was too quiet.|There was nobody to laugh with.) <h> (thought of <f>|thought about <f> and felt "
    "bad).\n"
    "So <h> took the <thing> and <walked> to find <f>. <f> was sitting alone <in_place>. "
    "\"I am sorry,\" said <h>. \"(Please come and play with me.|You can have the first turn.)\"\n"
    "<f> (smiled|looked up and smiled). Together they <used>. <both_happy> <lesson_share> <end_friends>",

    /* A baby that lost its mother. */
    "<opening>\n"
    "<one_day>, <h> was walking <in_place> when <he> heard a small cry. (Somebody was very sad.|"
    "It was a sad little sound.) ^<he> looked <spot> and saw a <baby_kind>. "
    "It was (cold and wet|all alone|shaking and very small).\n"
    "\"(Hello, little one|Do not be afraid),\" said <h>. \"Where is your mother?\"\n"
    "\"I do not know,\" said the <baby_kind>. \"I (went too far|ran after a butterfly), and now I am "
    "lost.\"\n"
    "<h> (wrapped it in a warm scarf|picked it up very gently|gave it <treat>). "
    "\"I will take you home,\" <he> said. They walked (over the bridge|past the old mill|through the "
    "tall grass) and (up the hill|along the river|around the pond). "
    "They asked <f_the>, (who knew the way|who knew everyone <in_place>). "
    "(\"Go to the big oak,\" said <f>.|\"I saw a nest near the gate,\" said <f>.|"
    "\"Follow me,\" said <f>.)\n"
    "And there was the mother! \"My baby!\" she cried. \"I looked for you all day.\" The <baby_kind> "
    "(was so happy|laughed and cried at the same time). \"Thank you, <h>,\" said the mother. "
    "\"You have a good heart.\"\n"
    "<happy> <end_home>",

    /* A noise in the night. */
    "<opening>\n"
    "One night, <h> could not sleep. (The moon was big and round.|The wind was blowing around the "
    "house.) Then <he> heard a strange noise. (Tap, tap, tap!|Scratch, scratch!|Thump, thump!)\n"
    "\"(Who is there|What is that)?\" whispered <h>. Nobody answered. (^<his> heart beat fast.|"
    "^<he> pulled the blanket over <his> head.) But <h> wanted to know, so <he> took a small lamp and "
    "(opened the door|went outside) (very slowly|step by step).\n"
    "(Tap, tap, tap!|There it was again!) The noise came from (behind the door|under the window|behind "
    "an old box). <h> held up the lamp and saw two round eyes. It was only <f_the>!\n"
    "(\"I am sorry,\" said <f>. \"I did not want to scare you. I am just so hungry.\"|"
    "\"Please do not be angry,\" said <f>. \"I am cold, and I saw your light.\"|\"I am lost,\" said <f>. "
    "\"I was afraid of the dark.\")\n"
    "<h> laughed. \"I was afraid of you, and you were afraid too! Come in.\" They ate <treat> and (told "
    "stories until the sun came up|sat close together under a blanket). <both_happy> <end_best>",

    /* A present. */
    "<opening>\n"
    "It was the birthday of <his> <m>. \"I want to (bake a cake|make a cake) for <mhim>,\" said <h>. "
    "But there (was no honey|were no berries|were no apples) in the house.\n"
    "So <h> took a basket and <walked> <to_place>. There <he> met <a> <f_noun> named <f>. "
    "\"Do you know where I can find (something sweet|what I need)?\" asked <h>.\n"
    "\"(Yes, I do|Of course),\" said <f>. \"(But it is far away.|But you must be quick.) "
    "Come with me!\" They went (over the bridge|past the old mill|through the tall grass), and soon the "
    "basket was full.\n"
    "At home, <h> and <f> (mixed|stirred) and baked. (There was flour on <his> nose and flour on the "
    "floor.|The first cake was black, but the second one was golden.|"
    "The cake was a little bit too flat, but it smelled very good.) Then <his> <m> came in. "
    "\"Happy birthday!\" they cried.\n"
    "\"What a surprise!\" said <his> <m>. \"This is the best cake in the world.\" (^<mhe> gave them both "
    "a hug.|They ate until nothing was left.) <happy> <end_night>",

    /* Rain. */
    "<opening> (^<his> best friend was <a> <f_noun> named <f>.)\n"
    "<one_day>, <h> and <f> went <to_place> (to play|to have a picnic|to look for flowers). "
    "They (ran|played|laughed) and had a good time. <clouds>\n"
    "\"(We are getting wet|Oh no, the rain)!\" (cried|called) <f>. "
    "\"(Where can we go|What can we do)?\"\n"
    "\"(I see <dry_place>|Look, there is <dry_place>),\" said <h>. "
    "\"Run!\" They ran as fast as they could. Inside, it was (dry and warm|dark but dry). "
    "(<h> shared <treat> with <f>.|They sat close together and told stories.|"
    "They sang songs so that they were not afraid.)\n"
    "(Soon|After a while|At last), the rain stopped. The sun came out, and there was a (big|bright) "
    "rainbow over the <place>. \"(How beautiful|Look at that)!\" said <f>. "
    "(They jumped into every puddle on the way home.|They looked at it for a long time.)\n"
    "\"(Rain is not so bad|Even a storm can be fun) (when you have a friend|if you are not alone),\" "
    "said <h>. <end_night>",

    /* Learning. */
    "<opening>\n"
    "<h> wanted to learn to <skill>. (All the others could do it.|^<his> <m> could do it so well.) "
    "<one_day>, <he> went <to_place> and tried. <fall> ^<he> tried again. (But it was no better.|"
    "But it went wrong again.)\n"
    "\"I will never learn to <skill>,\" said <h>. <sad>\n"
    "<friend_comes> <try_again>\n"
    "So <h> tried again, and again, and again. (^<he> did not give up.|"
    "Every day, it went a little better.) (And then, one morning,|And at last,) <he> could <skill>! "
    "\"(Look at me|I can do it)!\" cried <h>.\n"
    "(\"I knew you could do it,\" said <f>.|<f> clapped and cheered.) <happy> <end_home>",

    /* A seed. */
    "<opening>\n"
    "<one_day>, <his> <m> gave <him> a tiny seed. \"What will it be?\" asked <h>. "
    "\"(Wait and see|You must wait),\" said <his> <m>. \"(Give it water and sun.|"
    "It needs water and time.)\"\n"
    "<h> put the seed in the ground (next to the fence|near the gate) and gave it water. "
    "^<he> waited one day. Nothing happened. ^<he> waited (two days|a week). Nothing happened. "
    "(\"It is sleeping,\" said <f_the>, who lived nearby.|\"Maybe it does not like me,\" said <h>.) "
    "\"(Wait a little longer|Be patient),\" said <his> <m>.\n"
    "Then, one morning, there was a small green leaf! <happy> The plant grew and grew. "
    "It was as tall as <h>, and then it was as tall as the house. In the summer, it was full of (yellow "
    "flowers|red apples|sweet cherries).\n"
    "\"It was worth the wait,\" said <h>. ^<he> (shared with <f> and all the others|gave the first one "
    "to <his> <m>). <end_night>",

    /* A wish on a star. */
    "<opening>\n"
    "Every night, <h> looked at the stars and made a wish. \"I wish I had a friend,\" <he> said. "
    "(But the stars said nothing.|The stars were very far away.)\n"
    "<one_day>, <h> went <to_place> and found <a> <color> <thing> <spot>. "
    "\"(Who lost this|Whose is this)?\" <he> asked. ^<he> wanted to keep it, but <he> knew that somebody "
    "would miss it. So <h> went from door to door. (\"It is not mine,\" said the old man at the mill.|"
    "\"It is not mine,\" said the woman with the hens.) (\"Not mine,\" said the goat.|"
    "\"Not mine,\" said the farmer.)\n"
    "At the last house, <a> <f_noun> named <f> opened the door. \"My <thing>!\" cried <f>. "
    "\"You found it! (I was so sad without it.|I looked for it everywhere.)\"\n"
    "\"Do you want to come in and play?\" asked <f>. <h> did. Together they <used>. <both_happy>\n"
    "That night, <h> looked up at the stars. \"Thank you,\" <he> whispered. "
    "(One of them seemed to blink.|And the biggest star blinked.)",
};
const int corpus_n_plots = N(corpus_plots);
