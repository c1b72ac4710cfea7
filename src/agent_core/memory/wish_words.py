"""The beginnings of wishes in ten languages, as patterns; `wishes` reads them.

A pattern admits: what no pattern describes is no wish.
"""

from msgspec import Struct


class WishLanguage(Struct, frozen=True):
    """The ways in which wishes begin in one language, as patterns.

    Attributes:
        marks: a text without any of these, in lower case, holds no wish in this language.
        opening: words that may precede a wish: greetings, courtesies, the occasion.
        asked: the beginning of a question that asks for something; these words precede a wish.
        wishes: the beginnings of wishes.
        later: beginnings that also count behind a comma.
    """

    marks: tuple[str, ...]
    opening: str
    asked: str
    wishes: tuple[str, ...]
    later: tuple[str, ...] = ()


_APOSTROPHE = r"['\u2019]?"
_DO_NOT = rf"(?:do\s+not|don{_APOSTROPHE}t)"
_I_WOULD = rf"(?:i{_APOSTROPHE}d|i\s+would)"
# Words that follow "always" and "never" in a statement without a subject: "never worked",
# "always null". Any other word that has no ending of a verb's is taken as an instruction's verb.
_NO_VERB = (
    r"(?:\w*(?:[^su\W]s|ed|ing)|a|an|the|this|that|these|those|some|any|my|your|it|its|in|on|at|to"
    r"|of|for|from|by|with|without|about|as|if|when|while|and|or|so|more|less|again|mind|ever"
    r"|enough|quite|really|is|was|were|been|am|are|had|has|did|done|does|got|gotten|gone|went"
    r"|came|saw|seen|knew|known|thought|heard|found|made|took|taken|gave|given|said|told|left"
    r"|felt|kept|met|ran|sent|stood|won|wrote|written|began|begun|broke|broken|null|none|nil"
    r"|undefined|nan|true|false|empty|zero|one|same|wrong|right|slow|fast|green|red|late|open"
    r"|here|there|now|yet|too|not|no|only|just)\b"
)
_BARE_VERB = rf"(?:ever\s+)?(?:be\b|(?!{_NO_VERB})[a-z]{{2,}}(?:-[a-z]+)?\s+\S|do\s+\S|only\s+\S)"
_VERB = (
    r"(?:use|write|answer|reply|respond|speak|talk|say|call|run|add|put|keep|ask|show|tell|give|"
    r"make|do|commit|push|format|name|include|avoid|prefer|explain|start|end|check|test|leave|"
    r"start|finish|work|sign|indent|wrap|quote|cite|translate|list|stop|send|open|close)"
)
_HABIT = r"(?:use|write|answer|reply|respond|speak|talk|call|prefer|explain|commit|sign|quote)"
_MEMORY_NAMED = (
    r"(?:memor(?:y|ies)|notes?)\b\s*(?:about\b|that\b|of\s+(?:me|my|what|how|the\s+fact)\b|on\s+m[ey]\b|"
    r"with\b|regarding\b|mem_|$|[.,!])"
)

_ENGLISH = WishLanguage(
    marks=(
        *("remember", "always", "never", "forget", "prefer", "memor", "note", " mind", "from now"),
        *(
            "future",
            "going forward",
            "like",
            "love",
            "hate",
            " ever ",
            "rather",
            "from here on",
            "stand",
        ),
    ),
    opening=(
        r"(?:please|pls|kindly|also|and|but|so|then|ok(?:ay)?|yes|yeah|well|now|hey|hi|hello|thanks|"
        r"thank\s+you|great|good|perfect|nice|btw|by\s+the\s+way|oh|just|actually|important|important\s+note|"
        rf"ps|p\.s\.|i\s+(?:want|need)\s+you\s+to|{_I_WOULD}\s+like\s+you\s+to|let{_APOSTROPHE}s|"
        r"you\s+(?:should|must|have\s+to|need\s+to|are\s+to)(?!\s+remember)|you\s+(?:can|may)(?=\s+(?:now\s+)?forget)|(?:make|be)\s+sure\s+(?:to|that\s+you|you)|"
        r"try\s+to|(?:in|when|whenever|if|for|before|after|on|with|at|unless|once|while|as)\s[^,]{1,80},)"
    ),
    asked=r"(?:can|could|would|will)\s+you",
    wishes=(
        r"remember\b(?!-|\s+me\b|\s+when\b)",
        r"memori[sz]e\b",
        rf"(?:{_DO_NOT}|never)\s+(?:ever\s+)?forget\s*(?:[:,]|(?:that|this|it|i|i{_APOSTROPHE}m|my|we|our)\b|about\s+(?:my|our)\b|to\s+(?:always|never)\b)",
        r"(?:make|take)\s+(?:a\s+)?(?:mental\s+)?note\b",
        r"note\s+(?:down\s+)?(?:that\s+)?(?:i|my|we|our)\b",
        r"(?:save|store|add|write|put|keep|note)\b[^,.]{0,80}\b(?:to|in|into)\s+your\s+(?:long-term\s+)?memor(?:y|ies)\b",
        r"(?:save|store|add|write|put|keep|commit)\s+(?:this\s+|that\s+|it\s+)?(?:to|in|into)\s+memory\s*(?:[:,.!]|$|that\b)",
        rf"(?:always|never|{_DO_NOT}\s+ever)\s*,?\s+{_BARE_VERB}",
        rf"{_HABIT}\s+(?:always|never)\s+(?:in|on|at|with|without|to|as|by|from|the|a)\b",
        rf"{_HABIT}\b[^,;]*\salways\W*$",
        rf"{_HABIT}\b[^,;]*,\s*(?:but\s+)?never\s+[\w-]+\W*$",
        rf"(?:{_VERB}|{_DO_NOT})\b.*\b(?:from\s+now\s+on|from\s+here\s+on|going\s+forward|in\s+(?:the\s+)?future)\W*$",
        r"(?!(?:the|this|it|that|there|we|they|he|she)\b).{1,80}\bfrom\s+now\s+on\W*$",
        rf"in\s+(?:the\s+)?future,?\s+(?:please|always|never|only|{_DO_NOT}|{_VERB}|i\s+(?:want|prefer)|you\s+(?:should|must))\b",
        rf"(?:i|we)(?:\s+would|{_APOSTROPHE}d)?(?:\s+(?:really|strongly|generally|usually|always|much))*\s+prefer\b",
        r"my\s+(?:\w+\s+)?preference\b",
        rf"i\s+(?:really\s+|absolutely\s+)?(?:like|love|hate|dislike|appreciate|{_DO_NOT}\s+like|can{_APOSTROPHE}t\s+stand)\s+(?:it\s+when|it\s+if|when)\b",
        rf"(?:{_I_WOULD})\s+rather\s+(?:you|have|not)\b",
        r"i\s+(?:always|never)\s+(?:want|use|like|need|write|work|name|commit|format|answer|speak|drink|eat)\b",
        rf"(?:i\s+(?:want|need)|{_I_WOULD}\s+like)\s+(?:you|your|all|the|every)\b[^,]{{0,60}}\b(?:answers?|replies|responses?|explanations?|summar(?:y|ies)|commits?|messages?|you)\b[^,]{{0,40}}\b(?:always|never)\b",
        r"(?:your\s+|all\s+)?(?:answers|replies|responses|explanations)\s+(?:should|must)\s+(?:always|never)\b",
        r"forget\s+(?:that|what|everything|anything|all|whatever|my|our|me|i|we|this|these|those|your|the\s+(?:fact|memor(?:y|ies)|notes?|preference|rule)|about\s+(?:the\s+fact|(?!(?:it|the|this|these|those|them|him|her|us)\b)\w+))\b",
        r"stop\s+remembering\b",
        rf"(?:delete|erase|remove|drop|discard|wipe|clear)\s+(?:your\s+|the\s+|that\s+|this\s+|my\s+|all\s+|any\s+|every\s+|of\s+)*(?:\w+\s+)?{_MEMORY_NAMED}",
        r"(?:delete|erase|remove|drop|discard)\b.{0,80}\b(?:you|to)\s+remember(?:ed)?\b",
        r"(?:delete|erase|remove|drop|take|clear)\b.{0,80}\bfrom\s+your\s+(?:memory|memories|notes)\b",
    ),
    later=(
        r"remember\s*(?:(?:that|this|it|i|my|we|our|to\s+(?:always|never))\b|:)",
        r"(?:keep|bear)\s+(?:it\s+|this\s+|that\s+)?in\s+mind\b",
        r"(?:from\s+now\s+on|from\s+here\s+on|going\s+forward)\b(?!,?\s*(?:the|this|it|that|they|there|he|she)\b)",
        r"for\s+future\s+reference\b",
        r"forget\s+(?:that|what)\b",
    ),
)

_CHINESE_VERB = r"(?:请|請|要|你|不要|只用|只说|先|用(?!不|户|戶)|使用|回答|回复|回覆|保持|附上|遵守|遵循|写(?!入)|提交信息)"
_CHINESE = WishLanguage(
    marks=(
        *(
            "记",
            "記",
            "忘",
            "以后",
            "以後",
            "今后",
            "今後",
            "总是",
            "總是",
            "始终",
            "始終",
            "永远",
            "永遠",
        ),
        *(
            "从不",
            "绝不",
            "喜欢",
            "喜歡",
            "偏好",
            "习惯",
            "習慣",
            "每次",
            "从现在",
            "往后",
            "一律",
            "删",
            "刪",
        ),
    ),
    opening=(
        r"(?:请|請|麻烦|麻煩|帮我|幫我|帮忙|你要|你得|你应该|你必须|你需要|一定要|务必|还有|另外|好的|好|谢谢|那|对了|"
        r"顺便|顺便说一下|我希望你|我想让你|我要你|希望你|让我们|我们|给我|给|你|[，,、：:]|\s)"
    ),
    asked=r"(?:你)?(?:能不能|能否|可不可以|可以|能|会)",
    wishes=(
        r"(?:记住|記住|记下|記下|记得|記得|牢记|谨记|切记|记一下|記一下|记着)(?!了)",
        r"把.{1,80}(?:记住|記住|记下来|記下來|记下)(?!了)",
        r"(?:别|別|不要|千万别|勿)忘(?:了|记|記|掉)?\s*[我我们这那，,：:]",
        rf"(?:以后|以後|今后|今後|往后|从今以后)[，,\s]*(?:都|别|別|一律|每次|所有|凡是|{_CHINESE_VERB})",
        r"(?:从现在起|从现在开始|從現在起)(?!的|会|就)",
        rf"(?:总是|總是|始终|始終|永远|永遠|一律|每次都)(?:别|{_CHINESE_VERB})",
        r"(?:永远|永遠|绝对|千万|从来|任何时候都|绝|总是|每次都)(?:不要|别|別|不能|不准|不许|不得)",
        r"(?:用|使用|以|写|回答|回复|说|叫|保持|提交|运行).{0,40}(?:总是|始终|永远)(?:用|使用|以|要|先|在)",
        r"我(?:更|比较|平时|一般|一向|总是|通常|很|最|不|也|还是)*(?:喜欢|喜歡|偏好|偏爱|习惯|習慣|讨厌)(?![这那它你他她這])",
        r"我的(?:偏好|习惯|喜好)",
        r"我(?:总是|一直|从来不|从不)(?:用|使用|写|喝|吃|在)",
        r"(?:忘掉|忘记|忘記|忘了)(?!密码|密碼)",
        r"(?<!别)(?<!不要)把.{1,80}忘(?:掉|记|了)",
        r"(?:不要|别|別)再(?:记|記)(?:得|住|着|著)",
        r"(?:删除|刪除|删掉|刪掉|清除|清空|抹掉).{0,60}(?:记忆|記憶|笔记|筆記|你记(?:得|住|下)的?)(?!体|库|卡)",
        r"把.{1,80}(?:记忆|笔记).{0,4}(?:删|清|抹)",
    ),
)

_GERMAN_VERB = (
    r"(?:antworte?|schreibe?|verwende|benutze?|nutze?|nimm|mache?|führe?|lass|gib|sprich|rede|"
    r"zeige?|nenne?|frage?|halte?|kommentiere|formatiere|teste|prüfe?|committe|pushe|lösche?|"
    r"ändere?|sage?|erkläre?|setze?|füge?|arbeite|starte|vermeide|speichere?|beginne?)"
)
_GERMAN_FROM_NOW = (
    r"(?:ab\s+(?:jetzt|sofort|heute)|von\s+(?:nun|jetzt)\s+an|künftig|zukünftig|in\s+zukunft)"
)
_GERMAN = WishLanguage(
    marks=(
        *("merk", "vergiss", "immer", " nie", "nie ", "niemals", "lieber", "bevorzug", "ab jetzt"),
        *("zukunft", "künftig", "gedächtnis", "notier", "lösch", "denk", "ab sofort", " an", "mag"),
    ),
    opening=(
        r"(?:bitte|also|und|aber|ok(?:ay)?|hallo|hi|danke|super|gut|ach\s+ja|übrigens|außerdem|noch\s+etwas|"
        r"du\s+(?:sollst|solltest|musst)|ich\s+(?:möchte|will),?\s+dass\s+du|(?:wenn|bei|für|in|vor|nach)\s[^,]{1,80},)"
    ),
    asked=r"(?:kannst|könntest|würdest|magst)\s+du",
    wishes=(
        r"merke?\s+(?:dir|euch)\b|merken\s+sie\s+sich\b|dir\s+(?:bitte\s+)?(?:\w+\s+)?merken",
        r"(?:behalte?|behalten\s+sie)\b.{0,80}\b(?:im\s+(?:kopf|gedächtnis|hinterkopf)|in\s+erinnerung)",
        r"vergiss\s+(?:bitte\s+)?(?:nicht|nie|niemals),?\s+(?:dass\b|mein)",
        r"denke?\s+(?:bitte\s+)?(?:immer\s+)?(?:daran|dran),?\s+dass\b",
        r"notiere?\b(?:\s+dir)?,?\s+(?:bitte\s+)?(?:dass|dir)\b",
        rf"{_GERMAN_VERB}\s+(?:\w+\s+){{0,2}}(?:immer|nie|niemals|{_GERMAN_FROM_NOW})\b",
        r"(?:immer|nie|niemals)\s.{0,120}\s(?!ge\w+\W*$|bekommen|erhalten)(?-i:[a-zäöüß-]+(?:en|ern|eln))\W*$",
        rf"{_GERMAN_FROM_NOW}\s+(?:bitte|immer|nie|niemals|nur|alle?s?|keine?n?|auf|in|mit|{_GERMAN_VERB}|möchte\s+ich|will\s+ich|sollst\s+du)\b",
        rf"(?:{_GERMAN_VERB}|nur|keine?|auf|in|mit)\s.{{0,120}}\b{_GERMAN_FROM_NOW}\W*$",
        r"ich\s+(?:bevorzuge|ziehe\b.*\bvor\b|hätte\s+(?:es\s+)?(?:gerne?|lieber)|mag\s+(?:es|lieber|keine?n?)\b|(?:arbeite|nutze|verwende|benutze|schreibe|trinke|esse)\s+(?:immer|lieber|nie)|(?:möchte|will)\s+(?:immer|nie|lieber)\b)",
        r"mir\s+(?:ist|sind)\b.{0,60}\blieber\b|meine\s+vorliebe\b|am\s+liebsten\s+(?:mag|habe|nutze)",
        r"vergiss,?\s+(?:bitte,?\s+)?(?:wieder\s+)?,?\s*(?:dass|was|meine?n?|alles|das\s+mit)\b",
        r"lösche?\b.{0,80}(?:erinnerung|notiz|gedächtnis|gemerkt)",
    ),
)

_SPANISH_VERB = (
    r"(?:us[ae]|utili[cz][ae]|responde|contesta|escribe|habla|haz|pon|di|ejecuta|corre|comenta|"
    r"prueba|muestra|explica|agrega|añade|incluye|prefiere|llama|empieza|termina|mant[eé]n|deja|"
    r"formatea|verifica|revisa|guarda|traduce|evita)"
)
_SPANISH_FROM_NOW = r"(?:a\s+partir\s+de\s+ahora|de\s+ahora\s+en\s+adelante|desde\s+ahora|en\s+adelante|en\s+lo\s+sucesivo)"
_SPANISH = WishLanguage(
    marks=(
        *("recuerd", "record", "acuérd", "acuerd", "olvid", "cuenta", "siempre", "nunca", "jamás"),
        *("prefier", "preferir", "gusta", "ahora", "memori", "anota", "apunta", "nota", "odio"),
    ),
    opening=(
        r"(?:por\s+favor|oye|hola|gracias|y|pero|además|también|bueno|ah|vale|ok|entonces|quiero\s+que|"
        r"necesito\s+que|me\s+gustar[ií]a\s+que|debes|tienes\s+que|(?:cuando|si|para|en|antes\s+de|al)\s[^,]{1,80},)"
    ),
    asked=r"¿?\s*(?:puedes|podr[ií]as|puede|podr[ií]a)",
    wishes=(
        r"(?:recuerd[ae]s?|recordar|recordad)\s*(?::|(?:que|siempre|mi|mis|esto|por\s+favor)\b)",
        r"(?:acu[eé]rdate|acordate|acu[eé]rdese|acordarte)\b",
        r"no\s+(?:te\s+)?olvides\s+(?:nunca\s+)?(?:de\s+)?(?:que|mi)\b",
        r"ten(?:ga)?\s+(?:siempre\s+)?(?:en\s+cuenta|presente)\s+que\b",
        r"(?:anota|apunta|toma\s+nota|memoriza)\b(?!\s+(?:a|al|hacia)\b)",
        rf"siempre\s+(?:que\s[^,]{{1,80}},\s*)?{_SPANISH_VERB}\b",
        r"(?:nunca|jam[aá]s)\s+\w+[ae]s\b",
        r"no\s+\w+[ae]s\s+(?:nunca|jam[aá]s)\b",
        rf"{_SPANISH_VERB}\s+(?:\w+\s+)?(?:siempre|nunca)\b",
        rf"{_SPANISH_FROM_NOW}\b",
        rf"{_SPANISH_VERB}\s.{{0,120}}\b{_SPANISH_FROM_NOW}\W*$",
        r"(?:yo\s+)?(?:siempre\s+)?(?:prefiero|preferir[ií]a)\b|mi\s+preferencia\b",
        r"(?:no\s+)?me\s+gusta\s+(?:m[aá]s|que|cuando)\b|odio\s+(?:que|cuando)\b",
        r"(?:siempre|nunca)\s+(?:uso|quiero|utilizo|trabajo|escribo|bebo|tomo)\b",
        r"olv[ií]da(?:te)?\s+(?:de\s+)?(?:que|lo\s+que|mis?|todo)\b",
        r"(?:borra|elimina)\b.{0,80}(?:memoria|recuerd[oa]s?|notas?)\b",
    ),
)

_FRENCH_VERB = (
    r"(?:utilise|emploie|réponds|écris|parle|fais|mets|dis|lance|exécute|ajoute|commence|termine|"
    r"montre|explique|garde|évite|préfère|nomme|formate|teste|vérifie|demande|donne|prends)"
)
_FRENCH_FROM_NOW = r"(?:désormais|dorénavant|à\s+partir\s+de\s+maintenant|à\s+l['\u2019]avenir)"
_FRENCH = WishLanguage(
    marks=(
        *("souv", "rappel", "retien", "retenez", "oubli", "toujours", "jamais", "préfèr", "préfér"),
        *(
            "désormais",
            "dorénavant",
            "maintenant",
            "avenir",
            "esprit",
            "mémoire",
            "mémoris",
            "aime",
        ),
        *("supprime", "efface", "en tête", "note"),
    ),
    opening=(
        r"(?:s['\u2019]il\s+(?:te|vous)\s+pla[iî]t|stp|svp|et|mais|aussi|merci|bonjour|salut|alors|ok|au\s+fait|"
        r"je\s+veux\s+que\s+tu|j['\u2019]aimerais\s+que\s+tu|tu\s+dois|vous\s+devez|(?:quand|si|pour|dans|avant\s+de)\s[^,]{1,80},)"
    ),
    asked=r"(?:peux|pourrais)[-\s]tu|tu\s+(?:peux|pourrais)|pou(?:vez|rriez)[-\s]vous",
    wishes=(
        r"(?:souviens-toi|souvenez-vous|rappelle-toi|rappelez-vous|te\s+(?:souvenir|rappeler))\b",
        r"(?:retiens|retenez|retenir)\s+(?:bien\s+)?(?:que|ceci|cela|ça|mon|ma|mes)\b",
        r"n['\u2019]oublie[sz]?\s+(?:pas|jamais)\s+(?:que|mon|ma|mes)\b",
        r"garde[sz]?\s+(?:bien\s+)?(?:en\s+t[eê]te|à\s+l['\u2019]esprit|en\s+m[eé]moire)\b",
        r"m[eé]morise[rsz]?\b|note[rsz]?\s+(?:bien\s+)?que\s+(?:je|j['\u2019]|mon|ma|mes|nous)",
        rf"{_FRENCH_VERB}(?:z|ez)?\s+(?:\w+\s+)?toujours\b",
        r"n(?:e\s+|['\u2019])[\w-]+\s+(?:plus\s+)?jamais\b",
        r"(?:toujours|ne\s+(?:plus\s+)?jamais)\s+\w+(?:er|ir|re)\b",
        rf"{_FRENCH_FROM_NOW}\b",
        rf"{_FRENCH_VERB}(?:z|ez)?\s.{{0,120}}\b{_FRENCH_FROM_NOW}\W*$",
        r"je\s+pr[eé]f[eèé]r(?:e|erais)\b|ma\s+pr[eé]f[eé]rence\b",
        r"(?:j['\u2019]aime|je\s+n['\u2019]aime\s+pas|je\s+d[eé]teste)\s+(?:bien\s+)?(?:que|quand|qu['\u2019])",
        r"(?:je|j['\u2019])\s*(?:utilise|veux|travaille|écris|bois)\s+toujours\b",
        r"oublie[sz]?\s+(?:que|ce\s+que|mon|ma|mes|tout)\b",
        r"(?:supprime|efface)[sz]?\b.{0,80}(?:souvenirs?|m[eé]moire|notes?|retenu)\b",
    ),
)

_PORTUGUESE = WishLanguage(
    marks=(
        "lembr",
        "esque",
        "sempre",
        "nunca",
        "prefir",
        "prefer",
        "agora",
        "memori",
        "anot",
        "gosto",
    ),
    opening=(
        r"(?:por\s+favor|oi|olá|e|mas|também|além\s+disso|ok|obrigad[oa]|então|quero\s+que\s+você|"
        r"você\s+deve|(?:quando|se|para|em|antes\s+de|ao)\s[^,]{1,80},)"
    ),
    asked=r"(?:você\s+)?(?:pode|poderia)",
    wishes=(
        r"(?:lembre(?:-se)?|lembra-te|lembrar)\s*(?::|(?:de\s+)?que\b|(?:sempre|disso|disto)\b)",
        r"não\s+(?:se\s+)?esqueç?as?\s+(?:de\s+)?que\b|tenha\s+em\s+mente\b|(?:anote|memorize)\b",
        r"(?:sempre|nunca)\s+(?:use|usa|utilize|responda|escreva|fale|faça|coloque|execute|rode|mostre|explique|adicione|envie|apague|altere|mude|toque)\b",
        r"(?:use|utilize|responda|escreva|fale|faça|coloque|execute|rode|mostre)\s+(?:\w+\s+)?sempre\b",
        r"(?:a\s+partir\s+de\s+agora|de\s+agora\s+em\s+diante|daqui\s+(?:para|pra)\s+(?:a\s+)?frente)\b",
        r"(?:eu\s+)?(?:prefiro|preferiria)\b|(?:eu\s+)?(?:não\s+)?gosto\s+(?:quando|que)\b",
        r"esqueç?a\s+(?:que|o\s+que|meus?|minhas?|tudo)\b",
        r"(?:apague|exclua|remova)\b.{0,80}(?:memória|notas?|lembra)",
    ),
)

_ITALIAN = WishLanguage(
    marks=(
        "ricord",
        "dimentic",
        "sempre",
        " mai",
        "prefer",
        "d'ora",
        "d\u2019ora",
        "da ora",
        "mente",
        "annota",
    ),
    opening=(
        r"(?:per\s+favore|ciao|grazie|e|ma|anche|inoltre|ok|allora|voglio\s+che\s+tu|devi|"
        r"(?:quando|se|per|in|prima\s+di)\s[^,]{1,80},)"
    ),
    asked=r"(?:puoi|potresti|può|potrebbe)",
    wishes=(
        r"(?:ricorda(?:ti)?|ricordarti|ricordare)\s*(?::|(?:che|sempre|di\s+(?:usare|non))\b)",
        r"non\s+dimenticare\s+(?:mai\s+)?che\b|tieni\s+(?:sempre\s+)?(?:a\s+mente|presente)\b",
        r"(?:annota|memorizza|prendi\s+nota)\b",
        r"(?:usa|utilizza|rispondi|scrivi|parla|fai|metti|esegui|mostra|spiega|aggiungi)\s+(?:\w+\s+)?sempre\b",
        r"non\s+\w+(?:are|ere|ire)\s+mai\b",
        r"(?:d['\u2019]ora\s+in\s+poi|da\s+ora\s+in\s+poi|da\s+adesso\s+in\s+poi)\b",
        r"(?:io\s+)?preferi(?:sco|rei)\b|(?:non\s+)?mi\s+piace\s+(?:quando|che)\b",
        r"dimentica\s+(?:che|quello\s+che|il\s+mio|la\s+mia|i\s+miei|tutto)\b",
        r"(?:cancella|elimina)\b.{0,80}(?:memoria|ricord[oi]|note?)\b",
    ),
)

_RUSSIAN = WishLanguage(
    marks=(
        "запомн",
        "помни",
        "забуд",
        "всегда",
        "никогда",
        "предпочит",
        "отныне",
        "впредь",
        "момента",
        "нравится",
        "люблю",
        "учти",
        "виду",
        "памят",
    ),
    opening=r"(?:пожалуйста|и|а|но|также|ещё|еще|ок|привет|спасибо|хорошо|ты\s+должен|(?:когда|если|для|при|в)\s[^,]{1,80},)",
    asked=r"(?:можешь|мог(?:ла)?\s+бы|не\s+мог(?:ла)?\s+бы)(?:\s+ты)?",
    wishes=(
        r"(?:запомни(?:те|ть)?|помни(?:те)?|учти(?:те)?)\b",
        r"имей(?:те)?\s+в\s+виду\b|не\s+забудь(?:те)?,?\s+что\b",
        r"(?:всегда|никогда\s+не)\s+\w+(?:й|йте|и|ите|ь|ьте)\b",
        r"\w+(?:й|йте|и|ите)\s+всегда\b",
        r"(?:с\s+этого\s+момента|отныне|впредь)\b",
        r"я\s+(?:всегда\s+)?предпочитаю\b|(?:мне\s+(?:не\s+)?нравится|я\s+(?:не\s+)?люблю),?\s+когда\b",
        r"забудь(?:те)?,?\s+(?:что|мой|моё|мою|мои|всё|все|о\s+том|про\s+(?!это\b)\w+)\b",
        r"удали(?:те)?\b.{0,80}(?:памят|заметк|запомн|помнишь)",
    ),
)

_JAPANESE_LAST = (
    r"(?:ください|下さい|て|てね|てほしい|で|でね|こと|ように|禁止|お願い(?:します)?)[。！!\s]*$"
)
_JAPANESE = WishLanguage(
    marks=(
        "覚え",
        "忘れ",
        "常に",
        "いつも",
        "必ず",
        "毎回",
        "今後",
        "これから",
        "以後",
        "絶対",
        "好み",
        "好き",
        "メモ",
        "記憶",
    ),
    opening=r"(?:あと|それと|では|ありがとう(?:ございます)?|はい|ちなみに|[、,\s])",
    asked=r"",
    wishes=(
        r".{0,200}(?:覚えて(?:おいて)?|忘れないで|記憶して(?:おいて)?|メモして(?:おいて)?)(?:ください|下さい|ね|ほしい)?[。！!\s]*$",
        rf".{{0,80}}(?:常に|いつも|必ず|毎回|今後は?|これから(?:は|も)?|以後|絶対に?).{{0,160}}{_JAPANESE_LAST}",
        r"(?:私は|僕は|俺は).{0,120}(?:方が好き|が好み|を好み|が好き)",
        r".{0,200}(?<!ど)忘れて(?:ください|下さい|ね|ほしい)?[。！!\s]*$",
        r".{0,120}(?:記憶|メモ)を(?:削除|消)",
    ),
)

_KOREAN_LAST = r"(?:줘|주세요|하세요|세요|십시오|해라|마|말아\s?줘)[.!\s]*$"
_KOREAN = WishLanguage(
    marks=(
        "기억",
        "잊",
        "항상",
        "언제나",
        "절대",
        "앞으로",
        "이제부터",
        "지금부터",
        "선호",
        "메모",
    ),
    opening=r"(?:그리고|또|네|고마워(?:요)?|참|[,\s])",
    asked=r"",
    wishes=(
        rf".{{0,200}}(?:기억해|메모해|잊지)\s?.{{0,6}}{_KOREAN_LAST}",
        rf".{{0,80}}(?:항상|언제나|절대로?|앞으로는?|이제부터는?|지금부터는?).{{0,160}}{_KOREAN_LAST}",
        r"(?:나는|저는|난|전).{0,120}(?:선호|더\s?좋아)",
        rf".{{0,200}}잊어\s?(?:버려|{_KOREAN_LAST})",
        r".{0,120}(?:기억|메모).{0,40}(?:삭제|지워)",
    ),
)

LANGUAGES = (
    *(_ENGLISH, _CHINESE, _GERMAN, _SPANISH, _FRENCH, _PORTUGUESE, _ITALIAN, _RUSSIAN),
    *(_JAPANESE, _KOREAN),
)

FORGETTING = (
    *("forget", "forgot", "delete", "erase", "remove", "drop", "discard", "wipe", "clear", "purge"),
    *("unlearn", "remember", "no longer", "any more", "anymore", "not true", "wrong", "scrap"),
    *("忘", "删", "刪", "清除", "抹", "不要记", "别记", "别再记", "不再", "去掉", "移除"),
    *("vergiss", "vergess", "lösch", "entfern", "merk", "nicht mehr"),
    *("olvid", "borr", "elimin", "recuerd", "quita", "ya no"),
    *("oubli", "supprim", "efface", "retir", "souvien", "ne plus"),
    *("esque", "apag", "exclu", "remov", "lembr", "não mais"),
    *("dimentic", "cancell", "rimuov", "ricord", "non più"),
    *("забуд", "забыт", "удали", "сотри", "убери", "помни", "больше не"),
    *("忘れ", "削除", "消し", "消去", "覚え", "잊", "지워", "삭제", "기억"),
    *(
        "vergeet",
        "verwijder",
        "wis ",
        "glem",
        "slet",
        "glöm",
        "radera",
        "ta bort",
        "unohda",
        "poista",
    ),
    *("zapomn", "usuń", "skasuj", "vymaž", "felejts", "töröl", "unut", "hatırla", "uita", "șterge"),
    *("ξέχα", "διέγρα", "انس", "احذف", "امسح", "שכח", "מחק", "भूल", "हटा", "quên", "xóa", "lupakan"),
    *("hapus", "ลืม", "ลบ", "забрав", "видали", "oblida", "ahaztu"),
)
"""One of these, in lower case, is in any message that asks for something to be forgotten."""
